// Structs and functions of the PNG reader: png.cpp calls png_chunks.cpp, png_inflate.cpp, and png_unfilter.cpp.
#pragma once

#include <vector>

#include "core.h"

namespace segtrain {

// png_chunks.cpp ------------------------------------------------------------------------------------------------------
constexpr int kGray = 0, kColor = 2, kPalette = 3, kGrayAlpha = 4, kColorAlpha = 6;

struct Chunks {
    PngHeader header;
    Bytes palette{nullptr, 0}, strips{nullptr, 0};  // PLTE, and stRP of segtrain/data/shards/png_strips.py
    std::vector<Bytes> data;                        // IDAT
    size_t data_size = 0;
};

uint32_t big_endian(const uint8_t* at);
int samples(int color_type);  // number of values in a pixel
// Finds the chunks, and checks the checksums of all but IDAT. Those are checked where they are used.
Chunks read_chunks(Bytes file, bool header_only);
// Throws Fault if the checksum of the chunk with this body is wrong.
void check_crc(Bytes file, Bytes body);

// png_inflate.cpp -----------------------------------------------------------------------------------------------------
uint32_t png_crc(Bytes bytes);

// Inflates a zlib stream of `size` bytes, and checks its Adler-32. Throws Fault if it is damaged or has another size.
void inflate_whole(Bytes stream, uint8_t* out, size_t size);

// The number of bytes that `inflate_begin` needs at `out` for `rows` rows of `stride` bytes.
size_t inflate_begin_room(int64_t rows, size_t stride);
// Inflates the first `rows` rows of a zlib stream that inflates to more than inflate_begin_room bytes. Each row begins
// with a filter byte. The rest of the stream and its Adler-32 are not checked. Returns false if it cannot tell whether
// all rows were written: then call inflate_whole.
bool inflate_begin(Bytes stream, uint8_t* out, int64_t rows, size_t stride);

// Inflates raw deflate data that end with a final block. Returns false if they are damaged or do not give `size` bytes.
bool inflate_strip(Bytes blocks, uint8_t* out, size_t size);

// png_unfilter.cpp ----------------------------------------------------------------------------------------------------
// Bytes that must be readable after the rows given to `unfilter_rows`, because it reads words of up to 8 bytes.
constexpr size_t kPngSlack = 16;
// Undoes the filters of the first `bytes` bytes of `count` rows, in place. A row is a filter byte (0 to 4, which the
// caller checks) and its data. Rows are `stride` bytes apart. The row above the first one is `zeros`: `bytes` +
// kPngSlack zero bytes. `pixel`: bytes of a pixel (1, 2, 3, 4, 6, or 8; 1 if it has less than 8 bits).
void unfilter_rows(uint8_t* rows, size_t stride, int count, size_t bytes, int pixel, const uint8_t* zeros);

}  // namespace segtrain
