// Normalization of rows of RGB levels to float32 or bfloat16, in planes or interleaved.
//
// (level - shift) * scale takes two roundings to float32 on every processor, as in segtrain/data/pixels/normalize.py.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core.h"
#include "warp_rows.h"

#ifdef ST_X86
#include <immintrin.h>
#endif

#define ST_INLINE inline __attribute__((always_inline))

namespace segtrain {

namespace {

// To the nearest bfloat16, ties to even. `value` is finite.
ST_INLINE uint16_t rounded(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
ST_INLINE void put(float value, float* out) { *out = value; }
ST_INLINE void put(float value, uint16_t* out) { *out = rounded(value); }

constexpr int kBlock = 256;  // pixels that are sorted into planes at a time

void split_plain(const uint8_t* levels, int first, int count, uint8_t planes[3][kBlock]) {
    for (int k = first; k < count; ++k)
        for (int c = 0; c < 3; ++c) planes[c][k] = levels[3 * k + c];
}

#ifdef ST_X86

// Which of the bytes 0..15, 16..31, and 32..47 of 16 pixels goes where in the plane of a channel.
struct Picks {
    alignas(16) uint8_t of[3][3][16];  // of a channel, from a part
    Picks() {
        for (int c = 0; c < 3; ++c)
            for (int part = 0; part < 3; ++part)
                for (int k = 0; k < 16; ++k) {
                    int byte = 3 * k + c - 16 * part;
                    of[c][part][k] = uint8_t(byte >= 0 && byte < 16 ? byte : 0x80);
                }
    }
};
const Picks kPicks;

// The compilers' own code for this loop makes the whole normalization take four times as long.
__attribute__((target("avx2"))) int split_avx2(const uint8_t* levels, int count, uint8_t planes[3][kBlock]) {
    int k = 0;
    for (; k + 16 <= count; k += 16, levels += 48) {
        __m128i parts[3];
        for (int part = 0; part < 3; ++part) parts[part] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels + 16 * part));
        for (int c = 0; c < 3; ++c) {
            __m128i plane = _mm_setzero_si128();
            for (int part = 0; part < 3; ++part)
                plane = _mm_or_si128(plane, _mm_shuffle_epi8(parts[part], _mm_load_si128(reinterpret_cast<const __m128i*>(kPicks.of[c][part]))));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(planes[c] + k), plane);
        }
    }
    return k;
}

#else
int split_avx2(const uint8_t*, int, uint8_t[3][kBlock]) { return 0; }
#endif

template <class Value>
ST_INLINE void write_planes(const uint8_t* levels, int width, const Floats& form, size_t plane, Value* out) {
    uint8_t planes[3][kBlock];
    for (int first = 0; first < width; first += kBlock, levels += 3 * kBlock) {
        int count = std::min(kBlock, width - first);
        int done = use_avx2() ? split_avx2(levels, count, planes) : 0;
        split_plain(levels, done, count, planes);
        for (int c = 0; c < 3; ++c) {
            Value* __restrict line = out + size_t(c) * plane + first;
            float shift = form.shift[c], scale = form.scale[c];
            for (int k = 0; k < count; ++k) put((float(planes[c][k]) - shift) * scale, line + k);
        }
    }
}

template <class Value>
ST_INLINE void write_interleaved(const uint8_t* __restrict levels, int count, const Floats& form, Value* __restrict out) {
    constexpr int kValues = 48;  // a whole number of pixels and of vectors
    float shift[kValues], scale[kValues];
    for (int k = 0; k < kValues; ++k) {
        shift[k] = form.shift[k % 3];
        scale[k] = form.scale[k % 3];
    }
    for (int rest = count * 3; rest > 0; rest -= kValues, levels += kValues, out += kValues) {
        int values = std::min(rest, kValues);
        for (int k = 0; k < values; ++k) put((float(levels[k]) - shift[k]) * scale[k], out + k);
    }
}

template <class Value>
ST_INLINE void write_row(const uint8_t* levels, int count, const Floats& form, size_t plane, size_t place) {
    Value* out = static_cast<Value*>(form.out);
    if (form.planar)
        write_planes(levels, count, form, plane, out + place);
    else
        write_interleaved(levels, count, form, out + place * 3);
}

}  // namespace

ST_CLONES void FloatRows::write(const uint8_t* levels, int width, int row) const {
    size_t plane = size_t(crop_.height) * size_t(crop_.width), place = size_t(top_ + row) * size_t(crop_.width) + size_t(left_);
    if (floats_.bfloat16)
        write_row<uint16_t>(levels, width, floats_, plane, place);
    else
        write_row<float>(levels, width, floats_, plane, place);
}

void FloatRows::pad(const uint8_t fill[3], int bottom, int right) const {
    std::vector<uint8_t> line(size_t(crop_.width) * 3);
    for (size_t k = 0; k < line.size(); ++k) line[k] = fill[k % 3];
    FloatRows whole(floats_, crop_, 0, 0), after(floats_, crop_, 0, right);
    for (int row = 0; row < crop_.height; ++row) {
        bool covered = row >= top_ && row < bottom;
        whole.write(line.data(), covered ? left_ : crop_.width, row);
        if (covered) after.write(line.data(), crop_.width - right, row);
    }
}

void to_floats(const uint8_t* levels, Size size, const Floats& floats) {
    FloatRows rows(floats, size, 0, 0);
    for (int row = 0; row < size.height; ++row) rows.write(levels + size_t(row) * size_t(size.width) * 3, size.width, row);
}

}  // namespace segtrain
