// Structs and functions that the parts of the native decoder share. They do not use Python. Their only state is
// scratch memory, which belongs to one thread.
//
// Coordinates are in whole pixels, and rectangles are half-open. A part throws Fault if a file is damaged. It throws
// Unsupported if the file may be fine but another decoder has to read it. sample.cpp turns both into return codes.
// No file is trusted: sizes are checked before memory is allocated, and no read leaves the given bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace segtrain {

constexpr int64_t kMaxPixels = int64_t(1) << 28;  // the same as MAX_PIXELS in segtrain/data/pixels/header.py

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

// Decoded pixels of the rectangle `covers` of a picture. `pixels` points to its corner (covers.top, covers.left).
struct Picture {
    const uint8_t* pixels;
    size_t stride;  // bytes from one row to the next
    Rect covers;
    int channels;  // 3: interleaved RGB; 1: label ids
};

// The place of a crop, like Geometry in segtrain/data/augment/geometry.py: the picture is resized from `size` to
// `scaled`, and (top, left) is the crop's corner in the resized picture.
struct Geometry {
    Size size, scaled, crop;
    int top, left;
    bool flip;
    float brightness, contrast, saturation, hue;
};

// Memory that is reused, grows when needed, and is not cleared. Each thread has one for each purpose. If the caller
// gives memory of its own, that is used for requests that fit into it.
class Scratch {
  public:
    Scratch() = default;
    Scratch(uint8_t* given, size_t bytes) : given_(given), given_bytes_(bytes) {}
    uint8_t* get(size_t bytes) {
        if (bytes <= given_bytes_) return given_;
        if (bytes > capacity_) {
            memory_.reset();  // the old content is not needed: free it before allocating more
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

// Compiles a hot loop for several instruction sets. The dynamic linker picks one of them at load time.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__ELF__) && !defined(ST_NO_CLONES)
#define ST_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ST_CLONES
#endif

// jpeg.cpp ------------------------------------------------------------------------------------------------------------
Size jpeg_size(Bytes file);
// RGB pixels of `need`, or of a larger rectangle. The DCT scales the picture by 1/denom first (1, 2, 4, or 8), and
// `need` is a rectangle of the scaled picture. `index`: the result of jpeg_index for the same file, or empty.
Picture jpeg_region(Bytes file, Rect need, int denom, Bytes index, Scratch& scratch);

// png.cpp -------------------------------------------------------------------------------------------------------------
struct PngHeader {
    Size size;
    int bits, color_type;
    bool interlaced;
};
PngHeader png_header(Bytes file);
// Pixels of `need`, or of a larger rectangle. Throws Unsupported for formats that it does not read. 3 channels: RGB of
// 8 bits. Gray values are repeated, alpha is dropped, palette colors are looked up, and of 16 bits the upper 8 are
// kept. 1 channel: the stored values of a gray or palette picture of at most 8 bits.
Picture png_region(Bytes file, Rect need, int channels, Scratch& scratch);

// warp.cpp ------------------------------------------------------------------------------------------------------------
// Normalized values instead of levels: (level - shift) * scale of each channel, in float32, each step rounded. bfloat16
// is that value rounded to the nearest, ties to even.
struct Floats {
    void* out;  // (3, height, width) if `planar`, else (height, width, 3), without gaps
    bool bfloat16, planar;
    float shift[3], scale[3];
};
// The rectangle that `warp` (interpolate is true) or `sample_mask` (false) reads. `reduced` is the size of the decoded
// picture: a JPEG that the DCT has scaled is smaller than geometry.size, the size in its header.
Rect source_rect(const Geometry& geometry, Size reduced, bool interpolate);
// Writes the crop as RGB (crop.height, crop.width, 3), with its colors changed. Pixels outside the picture are `fill`.
// If `floats` is not null, the same levels are normalized and written there, and `out` is not used.
void warp(const Picture& picture, Size reduced, const Geometry& geometry, const uint8_t fill[3], uint8_t* out, const Floats* floats);
// Writes RGB levels (height, width, 3), without gaps between rows, as floats.
void to_floats(const uint8_t* levels, Size size, const Floats& floats);
// Writes the crop's train ids, lut[raw id], by nearest neighbor. Pixels outside the picture are `ignore`. Returns the
// first raw id with known[id] == 0, or -1 if all ids are known.
int sample_mask(const Picture& picture, const Geometry& geometry, const uint8_t lut[256], const uint8_t known[256],
                uint8_t ignore, uint8_t* out);

}  // namespace segtrain
