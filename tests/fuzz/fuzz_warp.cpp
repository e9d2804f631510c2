// Fuzz target of the resampling. The first 24 bytes of an input choose the geometry, and the rest repeats as the
// pixels.
//
// It must not read outside the rectangle that it asked for, or write outside the crop. All vector instructions must
// give the same bytes.
#include <cstdlib>
#include <vector>

#include "../../segtrain/data/pixels/native/warp_rows.h"

using namespace segtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 25) return 0;
    auto number = [&](int place, int modulus) { return int(data[place] | data[place + 1] << 8) % modulus; };
    Geometry geometry{};
    geometry.size = {1 + number(0, 300), 1 + number(2, 300)};
    geometry.scaled = {1 + number(4, 900), 1 + number(6, 900)};
    geometry.crop = {1 + number(8, 200), 1 + number(10, 200)};
    geometry.top = number(12, 800) - 400;
    geometry.left = number(14, 800) - 400;
    geometry.flip = data[16] & 1;
    geometry.brightness = data[16] & 2 ? float(data[17]) / 64 : 1;
    geometry.contrast = data[16] & 2 ? float(data[18]) / 64 : 1;
    geometry.saturation = data[16] & 4 ? float(data[19]) / 64 : 1;
    geometry.hue = data[16] & 4 ? float(data[20]) / 256 : 0;
    int denom = 1 << (data[21] & 3);
    Size reduced{(geometry.size.height + denom - 1) / denom, (geometry.size.width + denom - 1) / denom};
    const uint8_t fill[3] = {1, 2, 3};
    uint8_t lut[256], known[256];
    for (int id = 0; id < 256; ++id) {
        lut[id] = uint8_t(255 - id);
        known[id] = uint8_t(id != data[22]);
    }
    size_t area = size_t(geometry.crop.height) * size_t(geometry.crop.width);
    std::vector<uint8_t> first, first_mask, first_values;
    int first_unknown = 0;
    for (bool vectors : {false, true}) {
        allow_avx2(vectors);
        // Of exactly the crop's size, so that the sanitizer finds an access beyond it.
        std::vector<uint8_t> image(area * 3), mask(area), values(area * 3 * (data[23] & 1 ? 2 : 4));
        Floats floats{values.data(), (data[23] & 1) != 0, (data[23] & 2) != 0, {100, 110, 120}, {0.1f, 0.2f, 0.3f}};
        int unknown = -1;
        try {
            Rect need = source_rect(geometry, reduced, true), ids = source_rect(geometry, geometry.size, false);
            std::vector<uint8_t> pixels(size_t(need.height()) * size_t(need.width()) * 3), raw(size_t(ids.height()) * size_t(ids.width()));
            for (size_t k = 0; k < pixels.size(); ++k) pixels[k] = data[24 + k % (size - 24)];
            for (size_t k = 0; k < raw.size(); ++k) raw[k] = data[24 + k % (size - 24)];
            Picture picture{pixels.data(), size_t(need.width()) * 3, need, 3};
            warp(picture, reduced, geometry, fill, image.data(), nullptr);
            warp(picture, reduced, geometry, fill, nullptr, &floats);
            unknown = sample_mask({raw.data(), size_t(ids.width()), ids, 1}, geometry, lut, known, 255, mask.data());
        } catch (const Fault&) {
            return 0;
        }
        if (!vectors) {
            first = image;
            first_mask = mask;
            first_values = values;
            first_unknown = unknown;
        } else if (image != first || mask != first_mask || values != first_values || unknown != first_unknown) {
            std::abort();
        }
    }
    return 0;
}
