// Bilinear interpolation: along a row at the columns of a crop, and between two rows.
//
// A result is p0 + (p1 - p0) * weight. The vector code first puts the two source bytes of each result side by side.
// This takes one shuffle by a table that is made once per crop. The table also does the flip, at no cost. Then
// multiply-and-add of byte pairs gives p0 * 64 and (p1 - p0) * 64, and a rounding multiplication applies the weight.
#include "warp_rows.h"

#include <algorithm>
#include <cstring>

#include "core.h"

#ifdef ST_X86
#include <immintrin.h>
#endif

namespace segtrain {

namespace {

// a * b / 32768, rounded like _mm256_mulhrs_epi16.
inline int16_t product(int a, int b) { return int16_t((((a * b) >> 14) + 1) >> 1); }

}  // namespace

namespace {

bool supported() {
#ifdef ST_X86
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

bool avx2_in_use = supported();

}  // namespace

bool use_avx2() { return avx2_in_use; }

void allow_avx2(bool allowed) { avx2_in_use = allowed && supported(); }

void Columns::prepare(const std::vector<Tap>& taps, int row_bytes) {
    taps_ = taps.data();
    count_ = int(taps.size());
    in_pairs_ = use_avx2() && (prepare_pairs(row_bytes, 8) || prepare_pairs(row_bytes, 6));
}

namespace {

constexpr int kWindow = 16;  // bytes of a source row that one shuffle can reach

// Fills the table for the results [begin, begin + count) of a row of `total`. Results beyond its end repeat the last
// one. Returns false if their source bytes do not fit into a window of 16 bytes.
bool prepare_group(const Tap* taps, int total, int begin, int count, int row_bytes, uint8_t* pick, int16_t* weight, int32_t* base) {
    int from = begin / 3, to = std::min((begin + count - 1) / 3, total / 3 - 1);
    // Columns are in ascending or descending order, so the first or last one of a group is the lowest.
    int low = std::min(taps[from].first, taps[to].first) * 3;
    *base = std::max(0, std::min(low, row_bytes - kWindow));
    for (int k = 0; k < count; ++k) {
        int value = std::min(begin + k, total - 1), pixel = value / 3, channel = value - 3 * pixel;
        const Tap& tap = taps[pixel];
        int first = tap.first * 3 + channel - *base, second = tap.second * 3 + channel - *base;
        if (std::min(first, second) < 0 || std::max(first, second) >= kWindow) return false;
        pick[2 * k] = uint8_t(first);
        pick[2 * k + 1] = uint8_t(second);
        weight[k] = int16_t(tap.weight);
    }
    return true;
}

}  // namespace

bool Columns::prepare_pairs(int row_bytes, int each) {
    int total = count_ * 3, groups = (total + each - 1) / each;
    if (row_bytes < kWindow) return false;
    each_ = each;
    pairs_.resize(size_t(groups + 1) / 2);
    std::memset(pairs_.data(), 0, pairs_.size() * sizeof(Pair));
    for (int g = 0; g < groups; ++g) {
        Pair& pair = pairs_[size_t(g) / 2];
        int half = g & 1;
        if (!prepare_group(taps_, total, g * each, each, row_bytes, pair.pick + 16 * half, pair.weight + 8 * half, pair.base + half))
            return false;
    }
    return true;
}

#ifdef ST_X86
__attribute__((target("avx2"))) void Columns::interpolate_pairs(const uint8_t* row, int16_t* out) const {
    // Weights of a byte pair: (64, 0) and (-64, 64).
    const __m256i first = _mm256_set1_epi16(64), difference = _mm256_set1_epi16(int16_t(64 << 8 | 0xC0));
    for (const Pair& pair : pairs_) {
        __m256i both = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + pair.base[0]))),
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + pair.base[1])), 1);
        both = _mm256_shuffle_epi8(both, _mm256_load_si256(reinterpret_cast<const __m256i*>(pair.pick)));
        __m256i weight = _mm256_load_si256(reinterpret_cast<const __m256i*>(pair.weight));
        __m256i step = _mm256_mulhrs_epi16(_mm256_maddubs_epi16(both, difference), weight);
        __m256i line = _mm256_add_epi16(_mm256_maddubs_epi16(both, first), step);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(line));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + each_), _mm256_extracti128_si256(line, 1));
        out += 2 * each_;
    }
}
#else
void Columns::interpolate_pairs(const uint8_t*, int16_t*) const {}
#endif

void Columns::interpolate(const uint8_t* row, int16_t* out) const {
    if (in_pairs_) return interpolate_pairs(row, out);
    for (int k = 0; k < count_; ++k, out += 3) {
        const uint8_t *a = row + size_t(taps_[k].first) * 3, *b = row + size_t(taps_[k].second) * 3;
        int weight = taps_[k].weight;
        for (int c = 0; c < 3; ++c) out[c] = int16_t(a[c] * 64 + product((b[c] - a[c]) * 64, weight));
    }
}

ST_CLONES void blend(const int16_t* __restrict above, const int16_t* __restrict below, int16_t weight, int count,
                     uint8_t* __restrict out) {
    for (int k = 0; k < count; ++k) {
        int16_t line = int16_t(above[k] + product(int16_t(below[k] - above[k]), weight));
        out[k] = uint8_t(int16_t(line + 32) >> kLineBits);
    }
}

ST_CLONES void blend_and_add(const int16_t* __restrict above, const int16_t* __restrict below, int16_t weight, int count,
                             uint8_t* __restrict out, uint16_t* __restrict sums) {
    for (int k = 0; k < count; ++k) {
        int16_t line = int16_t(above[k] + product(int16_t(below[k] - above[k]), weight));
        uint16_t level = uint16_t(int16_t(line + 32) >> kLineBits);
        out[k] = uint8_t(level);
        sums[k] = uint16_t(sums[k] + level);
    }
}

void blend_rows(const int16_t* above, const int16_t* below, int weight, int count, uint8_t* out, uint16_t* sums) {
    if (sums)
        blend_and_add(above, below, int16_t(weight), count, out, sums);
    else
        blend(above, below, int16_t(weight), count, out);
}

ST_CLONES void add_row(const uint8_t* __restrict row, int count, uint16_t* __restrict sums) {
    for (int k = 0; k < count; ++k) sums[k] = uint16_t(sums[k] + row[k]);
}

}  // namespace segtrain
