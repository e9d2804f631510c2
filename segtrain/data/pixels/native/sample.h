// The C functions of the library. The structures are mirrored in __init__.py.
#pragma once

#include <cstdint>

#define ST_EXPORT extern "C" __attribute__((visibility("default")))

namespace segtrain {
constexpr int kMessage = 256;  // bytes that a message may take
enum Kind { kPixels = 0, kJpeg = 1, kPng = 2 };
}  // namespace segtrain

struct StStored {
    const uint8_t* data;
    int64_t size;    // bytes; of pixels: height * stride
    int64_t stride;  // bytes from row to row, of pixels alone
    int32_t kind, height, width;
    int32_t unused;
};

struct StRequest {
    StStored image, mask;
    int32_t size[2], scaled[2], crop[2], top, left, flip;
    float colors[4];  // brightness, contrast, saturation, hue
    uint8_t fill[4];   // the last: ignore_index
    const uint8_t *lut, *known;
    const uint8_t* index;
    int64_t index_size;
    uint8_t *out_image, *out_mask;
    int32_t unknown_id;  // set where the mask holds an id that is not known, else -1
    int32_t image_done;  // set when the image is made: what went wrong after it, went wrong with the mask
};

// One sample: what is null in `out_image` and `out_mask` is not made.
ST_EXPORT int st_crop(StRequest* request, char* message);
// Height and width from the header.
ST_EXPORT int st_size(const StStored* stored, int32_t size[2], char* message);
// A whole picture of `channels` (3: RGB, 1: stored ids) into `out`, without gaps between rows.
ST_EXPORT int st_whole(const StStored* stored, int channels, uint8_t* out, int height, int width, char* message);
// Memory of the three below is given back by st_free.
// Whether the pixels of a file can be decoded; for plain JPEGs without making them, and with their index (else `index` stays).
ST_EXPORT int st_check(const StStored* stored, int channels, uint8_t** index, int64_t* index_size, char* message);
ST_EXPORT int st_jpeg_index(const uint8_t* data, int64_t size, uint8_t** out, int64_t* out_size, char* message);
ST_EXPORT int st_jpeg_restarts(const uint8_t* data, int64_t size, int pixels, uint8_t** out, int64_t* out_size, char* message);
ST_EXPORT void st_free(uint8_t* memory);
// Size of the largest structure: another than Python's means a library of another version.
ST_EXPORT int st_layout();
ST_EXPORT const char* st_libraries();
// Why JPEGs are decoded more slowly than they could be; empty if they are not. Checked on the first call.
ST_EXPORT const char* st_jpeg_fault();
