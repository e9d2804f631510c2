// The loops over rows that resampling consists of. Each has a plain version, and one for AVX2 with the same results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define ST_X86 1
#endif

namespace segtrain {

bool use_avx2();
// Makes use_avx2() return false, for tests.
void allow_avx2(bool allowed);

constexpr int kLineBits = 6;   // interpolated rows are in 1/64 of a level: 255 * 64 and differences fit into int16
constexpr int kWeightBits = 15;

// The two source pixels that an output pixel lies between, and the weight of the second one, in 1/32768.
struct Tap {
    int first, second, weight;
};

// Interpolates rows at the columns of a crop. Its tables say which bytes of a source row each group of results needs.
class Columns {
  public:
    // `taps`: one for each output pixel, from left to right. A source row has `row_bytes` bytes, which may all be read.
    void prepare(const std::vector<Tap>& taps, int row_bytes);
    // Interpolates a row of RGB pixels. `out` has room for room() values, in 1/64 of a level.
    void interpolate(const uint8_t* row, int16_t* out) const;
    size_t room() const { return size_t(count_) * 3 + 64; }

  private:
    struct alignas(32) Pair {  // 2 x `each_` results from 16 bytes each
        uint8_t pick[32];
        int16_t weight[16];
        int32_t base[2];
    };
    bool prepare_pairs(int row_bytes, int each);
    void interpolate_pairs(const uint8_t* row, int16_t* out) const;

    const Tap* taps_ = nullptr;
    int count_ = 0, each_ = 0;
    bool in_pairs_ = false;
    std::vector<Pair> pairs_;
};

// out = above + (below - above) * weight / 32768, rounded to whole levels. If `sums` is not null, `out` is added to it.
void blend_rows(const int16_t* above, const int16_t* below, int weight, int count, uint8_t* out, uint16_t* sums);
void add_row(const uint8_t* row, int count, uint16_t* sums);

struct Colors {
    float brightness, contrast, saturation, hue;
};
// Changes colors in place, by one affine map. `mean_gray`: the mean gray level of all pixels before the change; it
// does not count if contrast is 1.
class ColorMap {
  public:
    ColorMap(const Colors& colors, double mean_gray);
    void apply(uint8_t* row, int width) const;

  private:
    struct Affine {
        double matrix[3][3], offset;
    };
    // The same map in integers of 16 bits: (sum of round(value * 128 * matrix / 32768) + offset) >> shift.
    struct FixedPoint {
        int16_t matrix[9], offset;
        int shift;
    };
    bool to_fixed_point();
    static void map_plain(uint8_t* pixel, int count, const FixedPoint& map);
    static int map_avx2(uint8_t* pixels, int count, const FixedPoint& map);

    Affine exact_;
    FixedPoint map_;
    bool small_;  // the values fit into 16 bits
};

// Writes rows of levels as normalized floats, at (top, left) of a crop.
class FloatRows {
  public:
    FloatRows(const Floats& floats, Size crop, int top, int left) : floats_(floats), crop_(crop), top_(top), left_(left) {}
    void write(const uint8_t* levels, int width, int row) const;
    // Writes padding around the rows [top, bottom) and columns [left, right) of the crop.
    void pad(const uint8_t fill[3], int bottom, int right) const;

  private:
    Floats floats_;
    Size crop_;
    int top_, left_;
};

// Maps the raw ids of a row to train ids at the columns of a crop: out[k] = lut[row[columns[k]]].
class Ids {
  public:
    // `lut`, `known`, and `columns` must exist as long as this object. A source row has `row_bytes` bytes.
    void prepare(const uint8_t lut[256], const uint8_t known[256], const std::vector<int>& columns, int row_bytes);
    // Returns false if a raw id is not known.
    bool map(const uint8_t* row, uint8_t* out);

  private:
    struct alignas(32) Pair {  // 2 x `each_` results from 16 bytes each
        uint8_t pick[32];
        int32_t base[2];
    };
    // The tables for 16 raw ids of which any is known. Each is there twice, for the two lanes of a vector.
    struct alignas(32) IdBlock {
        uint8_t lut[32], known[32], number[32];
    };
    bool prepare_pairs(int row_bytes, int each);
    bool map_pairs(const uint8_t* row, uint8_t* out);
    bool map_plain(const uint8_t* row, uint8_t* out) const;

    uint16_t table_[256];  // the train id of a raw id, plus 256 if it is unknown
    const uint8_t *lut_ = nullptr, *known_ = nullptr;
    const std::vector<int>* columns_ = nullptr;
    int each_ = 0;
    bool in_pairs_ = false;
    std::vector<Pair> pairs_;
    std::vector<IdBlock> blocks_;
    std::vector<uint8_t> line_;
};

}  // namespace segtrain
