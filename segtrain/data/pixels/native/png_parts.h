// What do the parts of the PNG reader share: png_chunks.cpp, png_inflate.cpp, png_unfilter.cpp, and png.cpp above them?
#pragma once

#include <vector>

#include "core.h"

namespace segtrain {

// png_chunks.cpp --------------------------------------------------------------------------------------------------------------
constexpr int kGray = 0, kColor = 2, kPalette = 3, kGrayAlpha = 4, kColorAlpha = 6;

struct Chunks {
    PngHeader header;
    Bytes palette{nullptr, 0}, strips{nullptr, 0};  // PLTE, stRP
    std::vector<Bytes> data;                        // IDAT
    size_t data_size = 0;
};

uint32_t big_endian(const uint8_t* at);
int samples(int color_type);  // of a pixel
// Finds the chunks and checks all of them but IDAT, which is checked where it is used.
Chunks read_chunks(Bytes file, bool header_only);
// Throws Fault if the chunk with this body is not what its checksum says.
void check_crc(Bytes file, Bytes body);

// png_inflate.cpp -------------------------------------------------------------------------------------------------------------
uint32_t png_crc(Bytes bytes);

// Inflates a zlib stream to exactly `size` bytes and checks its Adler-32. Throws Fault if it is damaged, shorter or longer.
void inflate_whole(Bytes stream, uint8_t* out, size_t size);

// How many bytes `inflate_begin` needs at `out` for rows of `stride` bytes, when `rows` of them are wanted.
size_t inflate_begin_room(int64_t rows, size_t stride);
// Inflates the first `rows` rows of a zlib stream that holds more than inflate_begin_room bytes; each row begins with a
// filter byte. Returns false when it cannot tell that they were all written: then inflate everything. What follows in the
// stream, and its Adler-32, is not looked at.
bool inflate_begin(Bytes stream, uint8_t* out, int64_t rows, size_t stride);

// Inflates raw deflate data that ends with its final block to exactly `size` bytes; false if it is anything else.
bool inflate_strip(Bytes blocks, uint8_t* out, size_t size);

// png_unfilter.cpp ------------------------------------------------------------------------------------------------------------
// Room that must lie behind the bytes given to `unfilter_rows`: pixels are read in words of up to 8 bytes.
constexpr size_t kPngSlack = 16;
// Undoes the filters of `count` rows in place. A row is a filter byte (0 to 4, checked by the caller) and its data, rows lie
// `stride` apart; only the first `bytes` bytes of each row's data are treated. The first row's upper neighbor is all zero.
// `zeros`: `bytes` + kPngSlack zero bytes. `pixel`: bytes of a pixel (1, 2, 3, 4, 6, 8; 1 for less than 8 bits).
void unfilter_rows(uint8_t* rows, size_t stride, int count, size_t bytes, int pixel, const uint8_t* zeros);

}  // namespace segtrain
