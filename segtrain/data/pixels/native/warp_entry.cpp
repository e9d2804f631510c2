// C functions for tests of the resampling alone, with any of the processor's vector instructions.
#include <algorithm>
#include <cstdio>

#include "core.h"
#include "sample.h"
#include "warp_rows.h"

using namespace segtrain;

namespace {

// `place`: height and width of size, scaled, and crop; then top, left, flip.
Geometry geometry_of(const int32_t place[9], const float colors[4]) {
    return {{place[0], place[1]}, {place[2], place[3]}, {place[4], place[5]}, place[6],   place[7],
            place[8] != 0,        colors[0],           colors[1],           colors[2], colors[3]};
}

template <class Work>
int guarded(char message[256], Work work) {
    try {
        return work();
    } catch (const std::exception& error) {
        std::snprintf(message, 256, "%s", error.what());
        return -2;
    }
}

}  // namespace

// `simd`: 0 plain, 1 AVX2, 2 AVX-512, but at most what the processor supports. The functions return -2 for a Fault.
ST_EXPORT int st_source_rect(const int32_t place[9], const int32_t reduced[2], int interpolate, int32_t rect[4], char message[256]) {
    return guarded(message, [&] {
        const float none[4] = {1, 1, 1, 0};
        Rect need = source_rect(geometry_of(place, none), {reduced[0], reduced[1]}, interpolate != 0);
        rect[0] = need.top, rect[1] = need.left, rect[2] = need.bottom, rect[3] = need.right;
        return 0;
    });
}

// `floats`: the form of a normalized result, or null for levels.
ST_EXPORT int st_warp_floats(const uint8_t* pixels, size_t stride, const int32_t covers[4], const int32_t reduced[2],
                             const int32_t place[9], const float colors[4], const uint8_t fill[3], void* out, int simd,
                             char message[256], const StFloats* floats) {
    return guarded(message, [&] {
        Picture picture{pixels, stride, {covers[0], covers[1], covers[2], covers[3]}, 3};
        Floats form;
        if (floats) form = floats->at(out);
        warp_by(picture, {reduced[0], reduced[1]}, geometry_of(place, colors), fill, static_cast<uint8_t*>(out),
                floats ? &form : nullptr, std::min(Simd(simd), best_simd()));
        return 0;
    });
}

ST_EXPORT int st_warp(const uint8_t* pixels, size_t stride, const int32_t covers[4], const int32_t reduced[2], const int32_t place[9],
                      const float colors[4], const uint8_t fill[3], uint8_t* out, int simd, char message[256]) {
    return st_warp_floats(pixels, stride, covers, reduced, place, colors, fill, out, simd, message, nullptr);
}

ST_EXPORT int st_sample_mask(const uint8_t* pixels, size_t stride, const int32_t covers[4], const int32_t place[9],
                             const uint8_t lut[256], const uint8_t known[256], int ignore, uint8_t* out, int simd, char message[256]) {
    return guarded(message, [&] {
        const float none[4] = {1, 1, 1, 0};
        Picture picture{pixels, stride, {covers[0], covers[1], covers[2], covers[3]}, 1};
        return mask_by(picture, geometry_of(place, none), lut, known, uint8_t(ignore), out, std::min(Simd(simd), best_simd()));
    });
}
