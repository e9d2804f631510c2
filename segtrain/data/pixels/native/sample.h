// The C functions of the library, and their structures, which __init__.py mirrors.
#pragma once

#include <cstdint>

#include "core.h"

#define ST_EXPORT extern "C" __attribute__((visibility("default")))

namespace segtrain {
constexpr int kMessage = 256;  // bytes of a message buffer, including the final zero
enum Kind { kPixels = 0, kJpeg = 1, kPng = 2 };
}  // namespace segtrain

struct StStored {
    const uint8_t* data;
    int64_t size;    // bytes
    int64_t stride;  // bytes from one row to the next; only for kPixels
    int32_t kind, height, width;
    int32_t unused;
};

struct StRequest {
    StStored image, mask;
    int32_t size[2], scaled[2], crop[2], top, left, flip;
    float colors[4];  // brightness, contrast, saturation, hue
    uint8_t fill[4];   // padding: RGB of the image, then ignore_index of the mask
    const uint8_t *lut, *known;  // 256 values each: the train id of a raw id, and whether the raw id has one
    const uint8_t* index;        // the result of st_jpeg_index for this image, or null
    int64_t index_size;
    uint8_t *out_image, *out_mask;
    int32_t unknown_id;  // output: the first id of the mask that is not known, or -1
    int32_t image_done;  // output: 1 once the image is complete; an error is then about the mask
};

// The form of normalized images; see Floats in core.h.
struct StFloats {
    int32_t bfloat16, planar;
    float shift[3], scale[3];

    segtrain::Floats at(void* out) const {
        return {out, bfloat16 != 0, planar != 0, {shift[0], shift[1], shift[2]}, {scale[0], scale[1], scale[2]}};
    }
};

// A function with a `message` returns 0 on success, 1 with the cause of a fault in `message`, and 2 if another decoder
// has to read the file.

// Makes one sample. With `floats`, which may be null, `out_image` is an array of normalized values.
ST_EXPORT int st_crop_floats(StRequest* request, const StFloats* floats, char* message);
// Normalizes RGB levels (height, width, 3) without gaps between rows.
ST_EXPORT int st_floats(const uint8_t* levels, int height, int width, const StFloats* floats, void* out, char* message);
// Writes the height and width in the header to `size`.
ST_EXPORT int st_size(const StStored* stored, int32_t size[2], char* message);
// Decodes a whole picture to `out`, without gaps between rows. `channels`: 3 for RGB, 1 for stored ids.
ST_EXPORT int st_whole(const StStored* stored, int channels, uint8_t* out, int height, int width, char* message);
// The next two functions allocate their output. The caller releases it with st_free.
// Checks that a file can be decoded. For a plain JPEG it only reads the entropy-coded data, and writes the index to
// `index`. Otherwise it decodes the pixels, and leaves `index` as it is.
ST_EXPORT int st_check(const StStored* stored, int channels, uint8_t** index, int64_t* index_size, char* message);
// The index of a JPEG: see IndexPoint in jpeg.h.
ST_EXPORT int st_jpeg_index(const uint8_t* data, int64_t size, uint8_t** out, int64_t* out_size, char* message);
// Reads `length` bytes of a regular file from `offset` on (negative: all) into `out`, if they fit into `room`. Returns
// their number, or -1 for a fault.
ST_EXPORT int64_t st_read(const char* path, int64_t offset, int64_t length, uint8_t* out, int64_t room);
ST_EXPORT void st_free(uint8_t* memory);
// Size of StRequest in bytes. If Python's structure has another size, the library is of another version.
ST_EXPORT int st_layout();
// Names and versions of the libraries that it was compiled with.
ST_EXPORT const char* st_libraries();
// For tests: 0 uses no vector instructions, 1 AVX2.
ST_EXPORT void st_simd(int most);
