// Fuzz target of the PNG decoder. The first 9 bytes of an input choose channels and region, and the rest is the file.
//
// The pixels of a region must be the same as in the whole picture.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../../segtrain/data/pixels/native/core.h"

using namespace segtrain;

// The region's pixels, without gaps between rows.
static std::vector<uint8_t> read(Bytes file, Rect need, int channels) {
    Scratch scratch;  // new memory, so that the sanitizer finds a read beyond it
    Picture got = png_region(file, need, channels, scratch);
    Rect covers = got.covers;
    if (covers.top > need.top || covers.left > need.left || covers.bottom < need.bottom || covers.right < need.right) std::abort();
    size_t row = size_t(need.width() * channels);
    std::vector<uint8_t> out(row * size_t(need.height()));
    const uint8_t* from = got.pixels + size_t(need.top - covers.top) * got.stride + size_t((need.left - covers.left) * channels);
    for (int y = 0; y < need.height(); y++) std::memcpy(out.data() + size_t(y) * row, from + size_t(y) * got.stride, row);
    return out;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 9) return 0;
    // A copy of exactly its size, so that the sanitizer finds a read beyond it.
    std::vector<uint8_t> content(data + 9, data + size);
    content.shrink_to_fit();
    Bytes file{content.data(), content.size()};
    try {
        Size picture = png_header(file).size;
        if (int64_t(picture.height) * picture.width > 1 << 20) return 0;  // slow, and finds nothing new
        auto side = [&](int at, int length) { return (data[at] << 8 | data[at + 1]) % length; };
        int top = side(1, picture.height), left = side(3, picture.width);
        Rect need{top, left, top + 1 + side(5, picture.height - top), left + 1 + side(7, picture.width - left)};
        int channels = data[0] & 1 ? 3 : 1;
        std::vector<uint8_t> part = read(file, need, channels);
        std::vector<uint8_t> all = read(file, {0, 0, picture.height, picture.width}, channels);
        size_t row = size_t(need.width() * channels);
        for (int y = need.top; y < need.bottom; y++) {
            const uint8_t* there = all.data() + (size_t(y) * size_t(picture.width) + size_t(need.left)) * size_t(channels);
            if (std::memcmp(part.data() + size_t(y - need.top) * row, there, row)) std::abort();
        }
    } catch (const Fault&) {
    } catch (const Unsupported&) {
    }
    return 0;
}
