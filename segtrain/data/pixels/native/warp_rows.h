// What does the resampling consist of? Loops over rows. Each has a plain form and forms for wider processors that give the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define ST_X86 1
#endif

namespace segtrain {

// What the processor has: nothing that matters here, AVX2, or AVX-512 with byte permutations (Ice Lake, Zen 4 and later).
enum class Simd { plain, avx2, vbmi };
Simd best_simd();

constexpr int kLineBits = 6;   // lines keep 6 bits below a level: 255 * 64 fits int16, and so do differences
constexpr int kWeightBits = 15;

struct Tap {  // the two source pixels that a pixel lies between, and the second one's weight in 1 / 32768
    int first, second, weight;
};

// The columns of a crop, ready for the vector code: which bytes of a source row a group of results is made of.
class Columns {
  public:
    // `taps` of each pixel from left to right; a source row holds `row_bytes`, all of which may be read.
    void prepare(const std::vector<Tap>& taps, int row_bytes, Simd simd);
    // Interpolates a row of RGB pixels; `out` has room for room() numbers.
    void interpolate(const uint8_t* row, int16_t* out) const;
    size_t room() const { return size_t(count_) * 3 + 64; }

  private:
    struct alignas(64) Wide {  // 32 results from 128 bytes
        uint8_t pick[64];
        int16_t weight[32];
        int32_t base;
    };
    struct alignas(32) Pair {  // 2 x `each_` results from 16 bytes each
        uint8_t pick[32];
        int16_t weight[16];
        int32_t base[2];
    };
    bool prepare_wide(int row_bytes);
    bool prepare_pairs(int row_bytes, int each);
    void interpolate_wide(const uint8_t* row, int16_t* out) const;
    void interpolate_pairs(const uint8_t* row, int16_t* out) const;

    const Tap* taps_ = nullptr;
    int count_ = 0, each_ = 0;
    Simd simd_ = Simd::plain;
    std::vector<Wide> wide_;
    std::vector<Pair> pairs_;
};

// above + (below - above) * weight, rounded to whole levels; where `sums` is given the results are added to it.
void blend_rows(const int16_t* above, const int16_t* below, int weight, int count, uint8_t* out, uint16_t* sums);
void add_row(const uint8_t* row, int count, uint16_t* sums);

struct Colors {
    float brightness, contrast, saturation, hue;
};
// One affine map of colors, in place. `mean_gray`: of these pixels, before.
void change_colors(uint8_t* pixels, size_t pitch, int height, int width, const Colors& colors, double mean_gray, Simd simd);

// The columns of a mask's crop: out[k] = lut[row[columns[k]]].
class Ids {
  public:
    // lut, known and columns must outlive this. A source row holds `row_bytes`.
    void prepare(const uint8_t lut[256], const uint8_t known[256], const std::vector<int>& columns, int row_bytes, Simd simd);
    // False where a raw id is not known.
    bool map(const uint8_t* row, uint8_t* out);

  private:
    struct alignas(64) Wide {  // `each_` results from 128 bytes
        uint8_t pick[64];
        int32_t base;
    };
    struct alignas(32) Pair {  // 2 x `each_` results from 16 bytes each
        uint8_t pick[32];
        int32_t base[2];
    };
    struct alignas(32) Sixteen {  // of the tables, where any of 16 ids is known; twice, for both lanes
        uint8_t lut[32], known[32], number[32];
    };
    bool prepare_wide(int row_bytes, int each);
    bool prepare_pairs(int row_bytes, int each);
    bool map_wide(const uint8_t* row, uint8_t* out) const;
    bool map_pairs(const uint8_t* row, uint8_t* out);
    bool map_plain(const uint8_t* row, uint8_t* out) const;

    uint16_t table_[256];  // train id, and 256 where the raw id is unknown
    const uint8_t *lut_ = nullptr, *known_ = nullptr;
    const std::vector<int>* columns_ = nullptr;
    int each_ = 0;
    Simd simd_ = Simd::plain;
    std::vector<Wide> wide_;
    std::vector<Pair> pairs_;
    std::vector<Sixteen> sixteens_;
    std::vector<uint8_t> line_;
};

// `warp` and `sample_mask` of core.h on another kind of processor than the best.
void warp_by(const Picture& picture, Size reduced, const Geometry& geometry, const uint8_t fill[3], uint8_t* out, Simd simd);
int mask_by(const Picture& picture, const Geometry& geometry, const uint8_t lut[256], const uint8_t known[256], uint8_t ignore,
            uint8_t* out, Simd simd);

}  // namespace segtrain
