// Resampling of a decoded rectangle to the pixels of a crop.
//
// Images are resampled bilinearly. Scale, crop, flip, colors, and normalization are one pass over rows, which writes to
// the final place. Only a change of contrast needs a second pass, because it depends on the mean of all pixels. Masks
// are resampled by nearest neighbor.
//
// Samples are taken at pixel centers. Positions are exact fractions, weights have 15 bits, and rows are interpolated to
// 1/64 of a level before they are blended. The result differs from exact arithmetic by at most 0.05 of a level before
// it is rounded.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "warp_axes.h"

namespace segtrain {

namespace {

void check(const Picture& picture, Rect need, int channels) {
    const Rect& has = picture.covers;
    if (need.top < has.top || need.left < has.left || need.bottom > has.bottom || need.right > has.right ||
        picture.channels != channels)
        throw Fault("the decoded part of the picture is too small");
}

// The mean gray level of rows. Each column of values has a 16-bit sum, which is large enough for 256 rows.
class Sums {
  public:
    uint16_t* begin(int count) {
        columns_.assign(size_t(count), 0);
        rows_ = 0;
        totals_[0] = totals_[1] = totals_[2] = 0;
        return columns_.data();
    }
    void next() {
        if (++rows_ % 256 == 0) flush();
    }
    double mean_gray(double pixels) {
        flush();
        return (0.299 * double(totals_[0]) + 0.587 * double(totals_[1]) + 0.114 * double(totals_[2])) / pixels;
    }

  private:
    void flush() {
        for (size_t k = 0; k < columns_.size(); ++k) totals_[k % 3] += columns_[k];
        std::fill(columns_.begin(), columns_.end(), uint16_t(0));
    }
    std::vector<uint16_t> columns_;
    uint64_t totals_[3];
    int rows_ = 0;
};

// What is done with a row after it is resampled. Each part may be null.
struct Finish {
    const ColorMap* colors;
    const FloatRows* floats;

    void row(uint8_t* pixels, int width, int number) const {
        if (colors) colors->apply(pixels, width);
        if (floats) floats->write(pixels, width, number);
    }
};

// The part of the crop that is inside the picture.
struct Target {
    uint8_t* pixels;
    size_t pitch;  // bytes from one row to the next; 0 if a row is not needed after `finish`
    bool flip;
    Sums* sums;  // of the result, or null
    Finish finish;
};

void copy_rows(const Picture& picture, const Axes& both, const Target& target) {
    int values = both.x.count() * 3;
    uint16_t* sums = target.sums ? target.sums->begin(values) : nullptr;
    for (int row = 0; row < both.y.count(); ++row) {
        const uint8_t* from = picture.pixels + size_t(row + both.y.first + both.y.origin - picture.covers.top) * picture.stride +
                              size_t(both.x.first + both.x.origin - picture.covers.left) * 3;
        uint8_t* to = target.pixels + size_t(row) * target.pitch;
        std::memcpy(to, from, size_t(values));
        target.finish.row(to, both.x.count(), row);
        if (!sums) continue;
        add_row(from, values, sums);
        target.sums->next();
    }
}

void resample(const Picture& picture, const Axes& both, const Target& target) {
    static thread_local std::vector<Tap> taps;
    static thread_local Columns columns;
    static thread_local std::vector<int16_t> lines[2];
    int count = both.x.count(), held[2] = {-1, -1};
    taps.resize(size_t(count));
    for (int k = 0; k < count; ++k) {
        Tap found = both.x.tap(both.x.first + k);
        taps[size_t(target.flip ? count - 1 - k : k)] = {found.first - picture.covers.left, found.second - picture.covers.left, found.weight};
    }
    columns.prepare(taps, picture.covers.width() * 3);
    for (auto& line : lines) line.resize(columns.room());
    auto line_of = [&](int source) {  // one buffer for even rows and one for odd rows: neighbors never share one
        int16_t* line = lines[source & 1].data();
        if (held[source & 1] != source) columns.interpolate(picture.pixels + size_t(source - picture.covers.top) * picture.stride, line);
        held[source & 1] = source;
        return line;
    };
    uint16_t* sums = target.sums ? target.sums->begin(count * 3) : nullptr;
    for (int row = 0; row < both.y.count(); ++row) {
        Tap found = both.y.tap(both.y.first + row);
        const int16_t* above = line_of(found.first);
        const int16_t* below = line_of(found.second);
        uint8_t* to = target.pixels + size_t(row) * target.pitch;
        blend_rows(above, below, found.weight, count * 3, to, sums);
        target.finish.row(to, count, row);
        if (sums) target.sums->next();
    }
}

// The means of the blocks of block x block pixels that the crop needs. Incomplete blocks repeat the last pixel.
Picture averaged(const Picture& picture, Rect need, Size whole, int block, std::vector<uint8_t>& memory) {
    Rect blocks{need.top / block, need.left / block, (need.bottom + block - 1) / block, (need.right + block - 1) / block};
    size_t pitch = size_t(blocks.width()) * 3;
    memory.resize(size_t(blocks.height()) * pitch);
    Picture small{memory.data(), pitch, blocks, 3};
    if (block == 2) {  // the mean of 4 pixels is the bilinear interpolation at the corner between them
        Axes halves{{2, 1, blocks.top, blocks.bottom, 0, whole.height, 1}, {2, 1, blocks.left, blocks.right, 0, whole.width, 1}, 1};
        resample(picture, halves, {memory.data(), pitch, false, nullptr, {}});
        return small;
    }
    int64_t count = int64_t(block) * block;
    std::vector<uint64_t> sums(pitch);
    for (int by = blocks.top; by < blocks.bottom; ++by) {
        std::fill(sums.begin(), sums.end(), uint64_t(count / 2));
        for (int64_t y = int64_t(by) * block; y < int64_t(by + 1) * block; ++y) {
            const uint8_t* row = picture.pixels + size_t(std::min<int64_t>(y, whole.height - 1) - picture.covers.top) * picture.stride;
            uint64_t* sum = sums.data();
            for (int bx = blocks.left; bx < blocks.right; ++bx, sum += 3)
                for (int64_t x = int64_t(bx) * block; x < int64_t(bx + 1) * block; ++x) {
                    const uint8_t* pixel = row + size_t(std::min<int64_t>(x, whole.width - 1) - picture.covers.left) * 3;
                    for (int c = 0; c < 3; ++c) sum[c] += pixel[c];
                }
        }
        uint8_t* out = memory.data() + size_t(by - blocks.top) * pitch;
        for (size_t k = 0; k < pitch; ++k) out[k] = uint8_t(sums[k] / uint64_t(count));
    }
    return small;
}

void pad(const Geometry& geometry, const Axes& both, int left, const uint8_t fill[3], uint8_t* out) {
    size_t pitch = size_t(geometry.crop.width) * 3, begin = size_t(left) * 3, end = begin + size_t(both.x.count()) * 3;
    std::vector<uint8_t> line(pitch);
    for (size_t k = 0; k < pitch; ++k) line[k] = fill[k % 3];
    for (int row = 0; row < geometry.crop.height; ++row, out += pitch) {
        bool covered = row >= both.y.first && row < both.y.last;
        std::memcpy(out, line.data(), covered ? begin : pitch);
        if (covered) std::memcpy(out + end, line.data() + end, pitch - end);
    }
}

}  // namespace

void warp(const Picture& picture, Size reduced, const Geometry& geometry, const uint8_t fill[3], uint8_t* out, const Floats* floats) {
    static thread_local std::vector<uint8_t> memory, levels;
    static thread_local Sums sums;
    Colors colors{geometry.brightness, geometry.contrast, geometry.saturation, geometry.hue};
    for (float value : {colors.brightness, colors.contrast, colors.saturation, colors.hue})
        if (!std::isfinite(value)) throw Fault("a color change is not a finite number");
    Axes both = axes(geometry, reduced);
    Rect need = interpolated_rect(both, reduced);
    check(picture, need, 3);
    int rows = both.y.count(), columns = both.x.count();
    int left = geometry.flip ? geometry.crop.width - both.x.last : both.x.first;
    size_t pitch = size_t(geometry.crop.width) * 3;
    bool colored = colors.brightness != 1 || colors.contrast != 1 || colors.saturation != 1 || colors.hue != 0;
    bool two_passes = colors.contrast != 1;
    ColorMap map(colors, 0);
    std::optional<FloatRows> float_rows;
    Finish finish{colored ? &map : nullptr, nullptr};
    Target target{nullptr, pitch, geometry.flip, nullptr, {}};
    if (!floats) {
        target.pixels = out + size_t(both.y.first) * pitch + size_t(left) * 3;
    } else {
        finish.floats = &float_rows.emplace(*floats, geometry.crop, both.y.first, left);
        target.pitch = two_passes ? size_t(columns) * 3 : 0;
        levels.resize(two_passes ? size_t(rows) * target.pitch : size_t(columns) * 3);
        target.pixels = levels.data();
    }
    if (two_passes)
        target.sums = &sums;
    else
        target.finish = finish;
    bool same = both.y.size == both.y.scaled && both.x.size == both.x.scaled && both.y.denom == 1;
    if (same && !geometry.flip)
        copy_rows(picture, both, target);
    else if (both.block == 1)
        resample(picture, both, target);
    else
        resample(averaged(picture, need, reduced, both.block, memory), both, target);
    if (two_passes) {
        map = ColorMap(colors, sums.mean_gray(double(rows) * columns));
        for (int row = 0; row < rows; ++row) finish.row(target.pixels + size_t(row) * target.pitch, columns, row);
    }
    if (rows == geometry.crop.height && columns == geometry.crop.width) return;
    if (floats)
        float_rows->pad(fill, both.y.last, left + columns);
    else
        pad(geometry, both, left, fill, out);
}

int sample_mask(const Picture& picture, const Geometry& geometry, const uint8_t lut[256], const uint8_t known[256], uint8_t ignore,
                uint8_t* out) {
    static thread_local std::vector<int> columns;
    Axes both = axes(geometry);
    check(picture, nearest_rect(both), 1);
    int count = both.x.count(), width = geometry.crop.width, left = geometry.flip ? width - both.x.last : both.x.first, unknown = -1;
    columns.resize(size_t(count));
    for (int k = 0; k < count; ++k)
        columns[size_t(geometry.flip ? count - 1 - k : k)] = both.x.nearest(both.x.first + k) - picture.covers.left;
    static thread_local Ids ids;
    ids.prepare(lut, known, columns, picture.covers.width());
    int before = -1;
    for (int row = 0; row < geometry.crop.height; ++row, out += width) {
        if (row < both.y.first || row >= both.y.last) {
            std::memset(out, ignore, size_t(width));
            continue;
        }
        int source = both.y.nearest(row);
        if (source == before) {
            std::memcpy(out, out - width, size_t(width));
            continue;
        }
        before = source;
        std::memset(out, ignore, size_t(left));
        std::memset(out + left + count, ignore, size_t(width - left - count));
        const uint8_t* from = picture.pixels + size_t(source - picture.covers.top) * picture.stride;
        if (!ids.map(from, out + left) && unknown < 0)
            for (int k = 0; k < count && unknown < 0; ++k)
                if (!known[from[columns[size_t(k)]]]) unknown = from[columns[size_t(k)]];
    }
    return unknown;
}

Rect source_rect(const Geometry& geometry, Size reduced, bool interpolate) {
    return interpolate ? interpolated_rect(axes(geometry, reduced), reduced) : nearest_rect(axes(geometry));
}

}  // namespace segtrain
