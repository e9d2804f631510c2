// Changes of brightness, contrast, saturation, and hue by one affine map of RGB.
//
// The arithmetic has 16 bits. Vector code splits 16 pixels into planes with shuffles, maps them, and interleaves
// them again.
#include <algorithm>
#include <cmath>

#include "core.h"
#include "warp_rows.h"

#ifdef ST_X86
#include <immintrin.h>
#endif

namespace segtrain {

namespace {

constexpr double kGray[3] = {0.299, 0.587, 0.114};  // luma of ITU-R BT.601
// A quarter turn in the plane of I and Q of YIQ, as a map of RGB: inverse(T) J T. T maps RGB to YIQ (NTSC), and J is
// the quarter turn. It is TURN in segtrain/data/augment/geometry.py.
constexpr double kTurn[3][3] = {{-0.168621795, -0.329804745, 0.498426540},
                                {0.327963394, -0.034610688, -0.293352706},
                                {-1.246461366, 1.043228883, 0.203232483}};

}  // namespace

ColorMap::ColorMap(const Colors& colors, double mean_gray) {
    double gain = double(colors.brightness) * colors.contrast, angle = 2 * 3.14159265358979323846 * colors.hue;
    double cosine = std::cos(angle), sine = std::sin(angle), kept = double(colors.saturation);
    // The gray part of a color stays. The rest is scaled by saturation and turned by hue.
    for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j)
            exact_.matrix[i][j] = gain * (kGray[j] + kept * (cosine * ((i == j) - kGray[j]) + sine * kTurn[i][j]));
    exact_.offset = (1 - double(colors.contrast)) * colors.brightness * mean_gray;
    small_ = to_fixed_point();
}

// Returns false if the values are too large for 16 bits.
bool ColorMap::to_fixed_point() {
    double most = 0;
    for (const auto& row : exact_.matrix) most = std::max(most, std::abs(row[0]) + std::abs(row[1]) + std::abs(row[2]));
    most += std::abs(exact_.offset) / 255;
    if (!(most < 31)) return false;
    int whole = 0;  // bits before the binary point
    while (most >= 0.99 * (1 << whole)) ++whole;
    map_.shift = 7 - whole;
    map_.offset = int16_t(std::lround(exact_.offset * (1 << map_.shift)) + (1 << map_.shift >> 1));
    for (int k = 0; k < 9; ++k) map_.matrix[k] = int16_t(std::lround(exact_.matrix[k / 3][k % 3] * (1 << (15 - whole))));
    return true;
}

void ColorMap::map_plain(uint8_t* pixel, int count, const FixedPoint& map) {
    for (; count > 0; --count, pixel += 3) {
        int in[3] = {pixel[0] << 7, pixel[1] << 7, pixel[2] << 7};
        for (int c = 0; c < 3; ++c) {
            int sum = map.offset;
            for (int d = 0; d < 3; ++d) sum += (((in[d] * map.matrix[3 * c + d]) >> 14) + 1) >> 1;
            pixel[c] = uint8_t(std::max(0, std::min(255, sum >> map.shift)));
        }
    }
}

#ifdef ST_X86

namespace {

// Shuffle tables: which byte goes where when pixels are split into planes and interleaved again.
struct Shuffles {
    // From the bytes 0..15 and 8..23 of each 8 pixels to a plane.
    alignas(32) uint8_t near[3][32], far[3][32];
    // From the packed planes [R G] and [B B] to the bytes 0..15 and 16..23 of each 8 pixels.
    alignas(32) uint8_t of_rg[2][32], of_b[2][32];
    Shuffles() {
        constexpr uint8_t none = 0x80;
        for (int k = 0; k < 32; ++k)
            for (int c = 0; c < 3; ++c) {
                int byte = k % 16 / 2 * 3 + c;
                near[c][k] = k % 2 || byte > 15 ? none : uint8_t(byte);
                far[c][k] = k % 2 || byte <= 15 ? none : uint8_t(byte - 8);
            }
        for (int k = 0; k < 64; ++k) {
            int byte = k / 32 * 16 + k % 16, c = byte % 3, pixel = byte / 3;
            of_rg[k / 32][k % 32] = c == 2 || pixel > 7 ? none : uint8_t(8 * c + pixel);
            of_b[k / 32][k % 32] = c != 2 || pixel > 7 ? none : uint8_t(pixel);
        }
    }
};
const Shuffles kShuffles;

__attribute__((target("avx2"))) inline __m256i both_lanes(const uint8_t* low, const uint8_t* high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low))),
                                   _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 1);
}

__attribute__((target("avx2"))) inline __m256i table(const uint8_t* from) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}

}  // namespace

__attribute__((target("avx2"))) int ColorMap::map_avx2(uint8_t* pixels, int count, const FixedPoint& map) {
    __m256i m[9];
    for (int k = 0; k < 9; ++k) m[k] = _mm256_set1_epi16(map.matrix[k]);
    const __m256i offset = _mm256_set1_epi16(map.offset);
    const __m128i shift = _mm_cvtsi32_si128(map.shift);
    int k = 0;
    for (; k + 16 <= count; k += 16, pixels += 48) {
        __m256i near = both_lanes(pixels, pixels + 24), far = both_lanes(pixels + 8, pixels + 32), in[3], out[3];
        for (int c = 0; c < 3; ++c)
            in[c] = _mm256_slli_epi16(_mm256_or_si256(_mm256_shuffle_epi8(near, table(kShuffles.near[c])),
                                                      _mm256_shuffle_epi8(far, table(kShuffles.far[c]))), 7);
        for (int c = 0; c < 3; ++c) {
            __m256i sum = _mm256_add_epi16(_mm256_mulhrs_epi16(in[0], m[3 * c]), _mm256_mulhrs_epi16(in[1], m[3 * c + 1]));
            sum = _mm256_add_epi16(sum, _mm256_add_epi16(_mm256_mulhrs_epi16(in[2], m[3 * c + 2]), offset));
            out[c] = _mm256_sra_epi16(sum, shift);
        }
        __m256i rg = _mm256_packus_epi16(out[0], out[1]), b = _mm256_packus_epi16(out[2], out[2]), bytes[2];
        for (int half = 0; half < 2; ++half)
            bytes[half] = _mm256_or_si256(_mm256_shuffle_epi8(rg, table(kShuffles.of_rg[half])),
                                          _mm256_shuffle_epi8(b, table(kShuffles.of_b[half])));
        for (int lane = 0; lane < 2; ++lane) {
            uint8_t* to = pixels + 24 * lane;
            __m128i start = lane ? _mm256_extracti128_si256(bytes[0], 1) : _mm256_castsi256_si128(bytes[0]);
            __m128i end = lane ? _mm256_extracti128_si256(bytes[1], 1) : _mm256_castsi256_si128(bytes[1]);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to), start);
            _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 16), end);
        }
    }
    return k;
}

#else
int ColorMap::map_avx2(uint8_t*, int, const FixedPoint&) { return 0; }
#endif

void ColorMap::apply(uint8_t* row, int width) const {
    if (small_) {
        int done = use_avx2() ? map_avx2(row, width, map_) : 0;
        return map_plain(row + size_t(done) * 3, width - done, map_);
    }
    // Such large factors are never used in training, so this case may be slow.
    for (uint8_t* pixel = row; pixel < row + size_t(width) * 3; pixel += 3) {
        double in[3] = {double(pixel[0]), double(pixel[1]), double(pixel[2])};
        for (int c = 0; c < 3; ++c) {
            const double* line = exact_.matrix[c];
            double sum = line[0] * in[0] + line[1] * in[1] + line[2] * in[2] + exact_.offset;
            pixel[c] = uint8_t(std::max(0.0, std::min(255.0, std::floor(sum + 0.5))));
        }
    }
}

}  // namespace segtrain
