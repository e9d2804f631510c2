// What do the parts of the native decoder share? Plain structs; no Python, no state but scratch memory of a thread.
//
// Coordinates are whole pixels, rectangles half-open. A part throws Fault for a file that is damaged, Unsupported for one
// that is fine but not its business; sample.cpp turns both into return codes. Nothing here trusts a file: sizes are checked before
// memory is taken, and every read is inside the bytes given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace segtrain {

constexpr int64_t kMaxPixels = int64_t(1) << 28;  // as decode.MAX_PIXELS

struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct Unsupported : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Bytes {
    const uint8_t* data;
    size_t size;
};

struct Size {
    int height, width;
};

struct Rect {
    int top, left, bottom, right;
    int height() const { return bottom - top; }
    int width() const { return right - left; }
};

// Decoded pixels of the rectangle `covers` of a picture; `pixels` is its corner (covers.top, covers.left).
struct Picture {
    const uint8_t* pixels;
    size_t stride;  // bytes from row to row
    Rect covers;
    int channels;  // 3: RGB interleaved; 1: label ids
};

// Where a crop lies, as augment.Geometry has it: the picture of `size` is scaled to `scaled`, the crop's corner is (top, left) there.
struct Geometry {
    Size size, scaled, crop;
    int top, left;
    bool flip;
    float brightness, contrast, saturation, hue;
};

// Memory that grows and is used again; not cleared. One for each thread and purpose. Or the caller's own, while that suffices.
class Scratch {
  public:
    Scratch() = default;
    Scratch(uint8_t* given, size_t bytes) : given_(given), given_bytes_(bytes) {}
    uint8_t* get(size_t bytes) {
        if (bytes <= given_bytes_) return given_;
        if (bytes > capacity_) {
            memory_.reset();  // the old content is not needed: free it before taking more
            capacity_ = 0;
            memory_.reset(new uint8_t[bytes]);
            capacity_ = bytes;
        }
        return memory_.get();
    }

  private:
    std::unique_ptr<uint8_t[]> memory_;
    size_t capacity_ = 0;
    uint8_t* given_ = nullptr;
    size_t given_bytes_ = 0;
};

// Hot loops are compiled for several instruction sets; the loader picks one at run time.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__ELF__) && !defined(ST_NO_CLONES)
#define ST_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ST_CLONES
#endif

// jpeg.cpp -------------------------------------------------------------------------------------------------------------------
Size jpeg_size(Bytes file);
// RGB pixels of (at least) `need` of the picture scaled by 1/denom (1, 2, 4, 8; by the DCT). `need` lies inside that picture.
// `index`: what jpeg_index gave for this very file, or empty.
Picture jpeg_region(Bytes file, Rect need, int denom, Bytes index, Scratch& scratch);

// png.cpp ---------------------------------------------------------------------------------------------------------------------
struct PngHeader {
    Size size;
    int bits, color_type;
    bool interlaced;
};
PngHeader png_header(Bytes file);
// Pixels of (at least) `need`. channels 3: RGB of 8 bits (gray repeated, alpha dropped, palette looked up, 16 bits cut to 8).
// channels 1: stored values of a gray or palette picture of at most 8 bits. Throws Unsupported for anything else.
Picture png_region(Bytes file, Rect need, int channels, Scratch& scratch);

// warp.cpp --------------------------------------------------------------------------------------------------------------------
// What `warp` (interpolate) or `sample_mask` (nearest) will read of a picture of geometry.size reduced to `reduced` (a DCT-scaled
// JPEG is smaller than its header says).
Rect source_rect(const Geometry& geometry, Size reduced, bool interpolate);
// The crop's pixels, RGB (crop.height, crop.width, 3), with colors changed; `fill` where the picture does not reach.
void warp(const Picture& picture, Size reduced, const Geometry& geometry, const uint8_t fill[3], uint8_t* out);
// The crop's train ids by nearest neighbor: lut[raw id]; returns the first raw id with known[id] == 0, else -1.
int sample_mask(const Picture& picture, const Geometry& geometry, const uint8_t lut[256], const uint8_t known[256],
                uint8_t ignore, uint8_t* out);

}  // namespace segtrain
