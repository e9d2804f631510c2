// How do the pixels of a crop come out of a part of the picture? One bilinear resampling, straight into place: scale, crop, flip and
// padding at once, then colors as one affine map. Masks by nearest neighbor.
//
// Both are taken at pixel centers; positions are exact fractions, weights have 15 bits, rows are interpolated to 1/64 of a level before
// they are blended: 0.05 of a level from exact arithmetic, and one rounding. A picture reduced by `denom` has for each of its
// pixels a block of denom x denom source pixels (libjpeg's DCT scaling, and the means of blocks here); the last block of a row may be cut
// off, so positions scale by size / scaled / denom, not by the ratio of whole widths.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core.h"
#include "warp_rows.h"

namespace segtrain {

namespace {

constexpr int kMaxSide = 1 << 20;

// One axis of the crop.
struct Axis {
    int64_t size, scaled;  // of the whole picture
    int first, last;       // pixels of the crop, before flipping, that the picture covers
    int origin;            // the crop's first pixel in the scaled picture
    int length;            // pixels of the picture at hand, each of `denom` source pixels
    int64_t denom;

    int count() const { return last - first; }

    Tap tap(int place) const {  // `place`: a pixel of the crop
        int64_t whole = 2 * scaled * denom;
        int64_t position = (2 * (int64_t(place) + origin) + 1) * size - scaled * denom;
        if (position <= 0) return {0, 0, 0};
        int64_t at = position / whole, rest = position % whole;
        if (at >= length - 1) return {length - 1, length - 1, 0};
        int weight = int(std::min<int64_t>((rest * 32768 + scaled * denom) / whole, 32767));
        return {int(at), weight ? int(at) + 1 : int(at), weight};
    }

    int nearest(int place) const { return int((2 * (int64_t(place) + origin) + 1) * size / (2 * scaled)); }
};

struct Axes {
    Axis y, x;
    int block;  // pixels of the picture at hand are means of block x block of the picture that is given
};

Axis axis(int size, int scaled, int crop, int origin) {
    for (int side : {size, scaled, crop})
        if (side < 1 || side > kMaxSide) throw Fault("a crop of an impossible size was asked for");
    if (origin < -kMaxSide || origin > kMaxSide) throw Fault("a crop outside the picture was asked for");
    Axis axis{size, scaled, std::max(0, -origin), std::min(crop, scaled - origin), origin, size, 1};
    if (axis.first >= axis.last) throw Fault("a crop outside the picture was asked for");
    return axis;
}

// Factor by which an axis of `size` was reduced. Where several fit there is one pixel, the same for all.
int factor(int size, int reduced) {
    for (int denom = 1; denom <= 8; denom *= 2)
        if ((size + denom - 1) / denom == reduced) return denom;
    throw Fault("a picture of another size than its header says");
}

Axes axes(const Geometry& geometry) {
    return {axis(geometry.size.height, geometry.scaled.height, geometry.crop.height, geometry.top),
            axis(geometry.size.width, geometry.scaled.width, geometry.crop.width, geometry.left), 1};
}

Axes axes(const Geometry& geometry, Size reduced) {
    Axes both = axes(geometry);
    int64_t denom = std::max(factor(geometry.size.height, reduced.height), factor(geometry.size.width, reduced.width));
    // Bilinear interpolation skips pixels where a step is longer than 2: then means of blocks are taken first.
    while (both.y.size > 2 * both.y.scaled * denom * both.block && both.x.size > 2 * both.x.scaled * denom * both.block) both.block *= 2;
    both.y.length = (reduced.height + both.block - 1) / both.block;
    both.x.length = (reduced.width + both.block - 1) / both.block;
    both.y.denom = both.x.denom = denom * both.block;
    return both;
}

void reach(const Axis& axis, int block, int length, int* low, int* high) {
    *low = axis.tap(axis.first).first * block;
    *high = std::min(length, (axis.tap(axis.last - 1).second + 1) * block);
}

Rect need_of(const Axes& both, Size reduced) {
    Rect need;
    reach(both.y, both.block, reduced.height, &need.top, &need.bottom);
    reach(both.x, both.block, reduced.width, &need.left, &need.right);
    return need;
}

Rect nearest_of(const Axes& both) {
    return {both.y.nearest(both.y.first), both.x.nearest(both.x.first), both.y.nearest(both.y.last - 1) + 1,
            both.x.nearest(both.x.last - 1) + 1};
}

void check(const Picture& picture, Rect need, int channels) {
    const Rect& has = picture.covers;
    if (need.top < has.top || need.left < has.left || need.bottom > has.bottom || need.right > has.right ||
        picture.channels != channels)
        throw Fault("too small a part of the picture was decoded");
}

// Sums of each column of values, from which the mean comes; 16 bits hold 256 rows.
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

struct Target {  // the part of the crop that the picture covers
    uint8_t* pixels;
    size_t pitch;
    bool flip;
    Simd simd;
    Sums* sums;  // or null
};

void copy_rows(const Picture& picture, const Axes& both, const Target& target) {
    int values = both.x.count() * 3;
    uint16_t* sums = target.sums ? target.sums->begin(values) : nullptr;
    for (int row = 0; row < both.y.count(); ++row) {
        const uint8_t* from = picture.pixels + size_t(row + both.y.first + both.y.origin - picture.covers.top) * picture.stride +
                              size_t(both.x.first + both.x.origin - picture.covers.left) * 3;
        std::memcpy(target.pixels + size_t(row) * target.pitch, from, size_t(values));
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
    columns.prepare(taps, picture.covers.width() * 3, target.simd);
    for (auto& line : lines) line.resize(columns.room());
    auto line_of = [&](int source) {  // two neighbors never share a place
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
        blend_rows(above, below, found.weight, count * 3, target.pixels + size_t(row) * target.pitch, sums);
        if (sums) target.sums->next();
    }
}

// Means of block x block pixels where the crop needs them; blocks cut off at the border repeat its last pixel.
Picture averaged(const Picture& picture, Rect need, Size whole, int block, Simd simd, std::vector<uint8_t>& memory) {
    Rect blocks{need.top / block, need.left / block, (need.bottom + block - 1) / block, (need.right + block - 1) / block};
    size_t pitch = size_t(blocks.width()) * 3;
    memory.resize(size_t(blocks.height()) * pitch);
    Picture small{memory.data(), pitch, blocks, 3};
    if (block == 2) {  // bilinear interpolation at every second pixel's corner is the mean of four
        Axes halves{{2, 1, blocks.top, blocks.bottom, 0, whole.height, 1}, {2, 1, blocks.left, blocks.right, 0, whole.width, 1}, 1};
        resample(picture, halves, {memory.data(), pitch, false, simd, nullptr});
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

void warp_by(const Picture& picture, Size reduced, const Geometry& geometry, const uint8_t fill[3], uint8_t* out, Simd simd) {
    static thread_local std::vector<uint8_t> memory;
    static thread_local Sums sums;
    Colors colors{geometry.brightness, geometry.contrast, geometry.saturation, geometry.hue};
    for (float value : {colors.brightness, colors.contrast, colors.saturation, colors.hue})
        if (!std::isfinite(value)) throw Fault("colors that are no numbers were asked for");
    Axes both = axes(geometry, reduced);
    Rect need = need_of(both, reduced);
    check(picture, need, 3);
    int left = geometry.flip ? geometry.crop.width - both.x.last : both.x.first;
    size_t pitch = size_t(geometry.crop.width) * 3;
    bool colored = colors.brightness != 1 || colors.contrast != 1 || colors.saturation != 1 || colors.hue != 0;
    Target target{out + size_t(both.y.first) * pitch + size_t(left) * 3, pitch, geometry.flip, simd,
                  colors.contrast != 1 ? &sums : nullptr};
    bool same = both.y.size == both.y.scaled && both.x.size == both.x.scaled && both.y.denom == 1;
    if (same && !geometry.flip)
        copy_rows(picture, both, target);
    else if (both.block == 1)
        resample(picture, both, target);
    else
        resample(averaged(picture, need, reduced, both.block, simd, memory), both, target);
    if (colored) {
        double mean = target.sums ? sums.mean_gray(double(both.y.count()) * both.x.count()) : 0;
        change_colors(target.pixels, pitch, both.y.count(), both.x.count(), colors, mean, simd);
    }
    if (both.y.count() < geometry.crop.height || both.x.count() < geometry.crop.width) pad(geometry, both, left, fill, out);
}

int mask_by(const Picture& picture, const Geometry& geometry, const uint8_t lut[256], const uint8_t known[256], uint8_t ignore,
            uint8_t* out, Simd simd) {
    static thread_local std::vector<int> columns;
    Axes both = axes(geometry);
    check(picture, nearest_of(both), 1);
    int count = both.x.count(), width = geometry.crop.width, left = geometry.flip ? width - both.x.last : both.x.first, unknown = -1;
    columns.resize(size_t(count));
    for (int k = 0; k < count; ++k)
        columns[size_t(geometry.flip ? count - 1 - k : k)] = both.x.nearest(both.x.first + k) - picture.covers.left;
    static thread_local Ids ids;
    ids.prepare(lut, known, columns, picture.covers.width(), simd);
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
    return interpolate ? need_of(axes(geometry, reduced), reduced) : nearest_of(axes(geometry));
}

void warp(const Picture& picture, Size reduced, const Geometry& geometry, const uint8_t fill[3], uint8_t* out) {
    warp_by(picture, reduced, geometry, fill, out, best_simd());
}

int sample_mask(const Picture& picture, const Geometry& geometry, const uint8_t lut[256], const uint8_t known[256], uint8_t ignore,
                uint8_t* out) {
    return mask_by(picture, geometry, lut, known, ignore, out, best_simd());
}

}  // namespace segtrain
