// Normalization of rows of RGB levels to float32 or bfloat16, in planes or interleaved.
//
// (level - shift) * scale takes two roundings to float32 on every processor, as in segtrain/data/pixels/normalize.py.
#include <cstring>
#include <vector>

#include "core.h"
#include "warp_rows.h"

#ifdef ST_X86
#include <immintrin.h>
#endif

namespace segtrain {

namespace {

// To the nearest bfloat16, ties to even. `value` is finite.
inline uint16_t rounded(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline void put(float value, float* out) { *out = value; }
inline void put(float value, uint16_t* out) { *out = rounded(value); }

template <class Value>
inline void plane_of(const uint8_t* __restrict levels, int count, float shift, float scale,
                                                    Value* __restrict out) {
    for (int k = 0; k < count; ++k) put((float(levels[size_t(k) * 3]) - shift) * scale, out + k);
}

template <class Value>
void interleaved(const uint8_t* levels, int begin, int count, const Floats& form, Value* out) {
    for (int k = begin; k < count; ++k) put((float(levels[k]) - form.shift[k % 3]) * form.scale[k % 3], out + k);
}

#ifdef ST_X86

// Which of the bytes 0..15, 16..31, and 32..47 of 16 pixels goes where in the plane of a channel.
struct Planes {
    alignas(16) uint8_t pick[3][3][16];  // of a channel, from a part
    Planes() {
        for (int c = 0; c < 3; ++c)
            for (int part = 0; part < 3; ++part)
                for (int k = 0; k < 16; ++k) {
                    int byte = 3 * k + c - 16 * part;
                    pick[c][part][k] = uint8_t(byte >= 0 && byte < 16 ? byte : 0x80);
                }
    }
};
const Planes kPlanes;

__attribute__((target("avx2"))) inline void store(__m256 low, __m256 high, float* out) {
    _mm256_storeu_ps(out, low);
    _mm256_storeu_ps(out + 8, high);
}

__attribute__((target("avx2"))) inline void store(__m256 low, __m256 high, uint16_t* out) {
    __m256i halves[2] = {_mm256_castps_si256(low), _mm256_castps_si256(high)};
    for (__m256i& bits : halves) {
        __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        bits = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
    }
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves[0], halves[1]), 0xD8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), packed);
}

template <class Value>
__attribute__((target("avx2"))) int planes_avx2(const uint8_t* levels, int count, const Floats& form, Value* const out[3]) {
    int k = 0;
    for (; k + 16 <= count; k += 16, levels += 48) {
        __m128i parts[3];
        for (int part = 0; part < 3; ++part) parts[part] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels + 16 * part));
        for (int c = 0; c < 3; ++c) {
            __m128i plane = _mm_setzero_si128();
            for (int part = 0; part < 3; ++part)
                plane = _mm_or_si128(plane, _mm_shuffle_epi8(parts[part], _mm_load_si128(reinterpret_cast<const __m128i*>(kPlanes.pick[c][part]))));
            __m256 shift = _mm256_set1_ps(form.shift[c]), scale = _mm256_set1_ps(form.scale[c]);
            __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(plane));
            __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(plane, 8)));
            store(_mm256_mul_ps(_mm256_sub_ps(low, shift), scale), _mm256_mul_ps(_mm256_sub_ps(high, shift), scale), out[c] + k);
        }
    }
    return k;
}

// 48 values at a time: vectors of 8 meet the three channels in turn.
template <class Value>
__attribute__((target("avx2"))) int interleaved_avx2(const uint8_t* levels, int count, const Floats& form, Value* out) {
    __m256 shift[3], scale[3];
    for (int part = 0; part < 3; ++part) {
        alignas(32) float terms[2][8];
        for (int k = 0; k < 8; ++k) {
            terms[0][k] = form.shift[(8 * part + k) % 3];
            terms[1][k] = form.scale[(8 * part + k) % 3];
        }
        shift[part] = _mm256_load_ps(terms[0]);
        scale[part] = _mm256_load_ps(terms[1]);
    }
    int k = 0;
    for (; k + 48 <= count; k += 48)
        for (int pair = 0; pair < 3; ++pair) {
            __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels + k + 16 * pair));
            int first = 2 * pair % 3, second = (2 * pair + 1) % 3;
            __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
            __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
            store(_mm256_mul_ps(_mm256_sub_ps(low, shift[first]), scale[first]),
                  _mm256_mul_ps(_mm256_sub_ps(high, shift[second]), scale[second]), out + k + 16 * pair);
        }
    return k;
}

#else
template <class Value>
int interleaved_avx2(const uint8_t*, int, const Floats&, Value*) { return 0; }
template <class Value>
int planes_avx2(const uint8_t*, int, const Floats&, Value* const*) { return 0; }
#endif

template <class Value>
void write_row(const uint8_t* levels, int count, const Floats& form, size_t plane, size_t place, Simd simd) {
    Value* out = static_cast<Value*>(form.out);
    if (!form.planar) {
        out += place * 3;
        int done = simd >= Simd::avx2 ? interleaved_avx2(levels, count * 3, form, out) : 0;
        return interleaved(levels, done, count * 3, form, out);
    }
    Value* const planes[3] = {out + place, out + plane + place, out + 2 * plane + place};
    int done = simd >= Simd::avx2 ? planes_avx2(levels, count, form, planes) : 0;
    for (int c = 0; c < 3; ++c) plane_of(levels + size_t(done) * 3 + c, count - done, form.shift[c], form.scale[c], planes[c] + done);
}

}  // namespace

void FloatRows::write(const uint8_t* levels, int width, int row) const {
    size_t plane = size_t(crop_.height) * size_t(crop_.width), place = size_t(top_ + row) * size_t(crop_.width) + size_t(left_);
    if (floats_.bfloat16)
        write_row<uint16_t>(levels, width, floats_, plane, place, simd_);
    else
        write_row<float>(levels, width, floats_, plane, place, simd_);
}

void FloatRows::pad(const uint8_t fill[3], int bottom, int right) const {
    std::vector<uint8_t> line(size_t(crop_.width) * 3);
    for (size_t k = 0; k < line.size(); ++k) line[k] = fill[k % 3];
    FloatRows whole(floats_, crop_, 0, 0, simd_), after(floats_, crop_, 0, right, simd_);
    for (int row = 0; row < crop_.height; ++row) {
        bool covered = row >= top_ && row < bottom;
        whole.write(line.data(), covered ? left_ : crop_.width, row);
        if (covered) after.write(line.data(), crop_.width - right, row);
    }
}

void to_floats(const uint8_t* levels, Size size, const Floats& floats) {
    FloatRows rows(floats, size, 0, 0, best_simd());
    for (int row = 0; row < size.height; ++row) rows.write(levels + size_t(row) * size_t(size.width) * 3, size.width, row);
}

}  // namespace segtrain
