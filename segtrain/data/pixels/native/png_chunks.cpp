// The parser of PNG chunks, and the check of their checksums.
#include <cstring>
#include <string>

#include "png_parts.h"

namespace segtrain {

namespace {

bool is(const uint8_t* kind, const char* name) { return std::memcmp(kind, name, 4) == 0; }

PngHeader read_header(Bytes body) {
    const uint8_t* at = body.data;
    uint32_t width = big_endian(at), height = big_endian(at + 4);
    int bits = at[8], color = at[9];
    bool small = bits == 1 || bits == 2 || bits == 4;
    bool single = color == kGray || color == kPalette;
    bool several = color == kColor || color == kGrayAlpha || color == kColorAlpha;
    bool known = (single && (small || bits == 8)) || ((several || color == kGray) && (bits == 8 || bits == 16));
    if (!known || at[10] || at[11] || at[12] > 1) throw Fault("the PNG's header is damaged");
    if (!width || !height || uint64_t(width) * height > uint64_t(kMaxPixels))
        throw Fault("the header claims " + std::to_string(height) + " x " + std::to_string(width) + " pixels");
    return {{int(height), int(width)}, bits, color, at[12] == 1};
}

}  // namespace

uint32_t big_endian(const uint8_t* at) {
    return uint32_t(at[0]) << 24 | uint32_t(at[1]) << 16 | uint32_t(at[2]) << 8 | at[3];
}

// The 4 bytes before a body are the chunk's type. The 4 bytes after it are the checksum of type and body.
void check_crc(Bytes file, Bytes body) {
#ifndef ST_FUZZING
    if (png_crc({body.data - 4, body.size + 4}) != big_endian(body.data + body.size))
        throw Fault("the PNG is damaged (checksum of a chunk at byte " + std::to_string(body.data - 8 - file.data) + ")");
#else
    (void)file, (void)body;
#endif
}

int samples(int color_type) {
    if (color_type == kGrayAlpha) return 2;
    return color_type == kColor ? 3 : color_type == kColorAlpha ? 4 : 1;
}

Chunks read_chunks(Bytes file, bool header_only) {
    static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    if (file.size < 8 || std::memcmp(file.data, signature, 8)) throw Fault("not a PNG");
    Chunks chunks;
    bool begun = false, data_ended = false;
    for (size_t at = 8;;) {
        size_t left = file.size - at;
        uint32_t length = left < 12 ? 0 : big_endian(file.data + at);
        if (left < 12 || length > left - 12) throw Fault("the PNG ends early, after " + std::to_string(file.size) + " bytes");
        const uint8_t* kind = file.data + at + 4;
        Bytes body{file.data + at + 8, length};
        bool data = is(kind, "IDAT");
        if (begun == is(kind, "IHDR") || (!begun && length != 13)) throw Fault("the PNG's header is damaged");
        if (data && data_ended) throw Fault("the PNG's pixel data are in two places");
        if (!data) check_crc(file, body);
        if (!begun) {
            chunks.header = read_header(body);
            begun = true;
            if (header_only) return chunks;
        } else if (data) {
            chunks.data.push_back(body);
            chunks.data_size += length;
        } else if (is(kind, "IEND")) {
            break;
        } else if (is(kind, "PLTE")) {
            if (chunks.data.empty()) chunks.palette = body;
        } else if (is(kind, "stRP")) {
            if (chunks.data.empty()) chunks.strips = body;
        } else if (is(kind, "acTL")) {
            throw Unsupported("an animated PNG");
        } else if (!(kind[0] & 32)) {
            throw Fault("the PNG has a critical chunk of unknown type");
        }
        data_ended = !chunks.data.empty() && !data;
        at += 12 + size_t(length);
    }
    if (chunks.data.empty()) throw Fault("the PNG has no pixel data");
    return chunks;
}

PngHeader png_header(Bytes file) { return read_chunks(file, true).header; }

}  // namespace segtrain
