// The positions of a crop's pixels in the decoded picture, along each axis.
//
// A picture is reduced by `denom` if each of its pixels stands for denom x denom source pixels. libjpeg's DCT scaling
// does this, and `averaged` in warp.cpp. The last block of a row may be incomplete. So positions scale by size / scaled
// / denom, not by the ratio of the widths in pixels.
#pragma once

#include <algorithm>

#include "core.h"
#include "warp_rows.h"

namespace segtrain {

constexpr int kMaxSide = 1 << 20;

// One axis of the crop.
struct Axis {
    int64_t size, scaled;  // of the whole picture
    int first, last;       // the pixels [first, last) of the crop, before the flip, are inside the picture
    int origin;            // position of the crop's first pixel in the scaled picture
    int length;            // pixels of the reduced picture
    int64_t denom;         // source pixels per pixel of the reduced picture

    int count() const { return last - first; }

    // The source of pixel `place` of the crop.
    Tap tap(int place) const {
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
    int block;  // `averaged` reduces the decoded picture by this factor first
};

inline Axis axis(int size, int scaled, int crop, int origin) {
    for (int side : {size, scaled, crop})
        if (side < 1 || side > kMaxSide) throw Fault("the requested crop has an impossible size");
    if (origin < -kMaxSide || origin > kMaxSide) throw Fault("the requested crop lies outside the picture");
    Axis axis{size, scaled, std::max(0, -origin), std::min(crop, scaled - origin), origin, size, 1};
    if (axis.first >= axis.last) throw Fault("the requested crop lies outside the picture");
    return axis;
}

// The factor by which an axis of `size` was reduced: the smallest that fits. If several fit, the reduced axis has one
// pixel, and each of them gives the same result.
inline int factor(int size, int reduced) {
    for (int denom = 1; denom <= 8; denom *= 2)
        if ((size + denom - 1) / denom == reduced) return denom;
    throw Fault("the picture does not have the size in its header");
}

inline Axes axes(const Geometry& geometry) {
    return {axis(geometry.size.height, geometry.scaled.height, geometry.crop.height, geometry.top),
            axis(geometry.size.width, geometry.scaled.width, geometry.crop.width, geometry.left), 1};
}

inline Axes axes(const Geometry& geometry, Size reduced) {
    Axes both = axes(geometry);
    int64_t denom = std::max(factor(geometry.size.height, reduced.height), factor(geometry.size.width, reduced.width));
    // Bilinear interpolation skips pixels if a step is longer than 2 pixels. Then the picture is averaged first.
    while (both.y.size > 2 * both.y.scaled * denom * both.block && both.x.size > 2 * both.x.scaled * denom * both.block) both.block *= 2;
    both.y.length = (reduced.height + both.block - 1) / both.block;
    both.x.length = (reduced.width + both.block - 1) / both.block;
    both.y.denom = both.x.denom = denom * both.block;
    return both;
}

inline void source_span(const Axis& axis, int block, int length, int* low, int* high) {
    *low = axis.tap(axis.first).first * block;
    *high = std::min(length, (axis.tap(axis.last - 1).second + 1) * block);
}

inline Rect interpolated_rect(const Axes& both, Size reduced) {
    Rect need;
    source_span(both.y, both.block, reduced.height, &need.top, &need.bottom);
    source_span(both.x, both.block, reduced.width, &need.left, &need.right);
    return need;
}

inline Rect nearest_rect(const Axes& both) {
    return {both.y.nearest(both.y.first), both.x.nearest(both.x.first), both.y.nearest(both.y.last - 1) + 1,
            both.x.nearest(both.x.last - 1) + 1};
}

}  // namespace segtrain
