// The C functions that Python calls: one makes a sample, the others read headers or whole pictures.
//
// They return 0, or 1 with the cause of a fault in `message`, or 2 for a file that other packages have to decode. No
// exception leaves them. They do not use Python, so ctypes can release the GIL while they run.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include <jpeglib.h>
#ifdef ST_LIBDEFLATE
#include <libdeflate.h>
#else
#include <zlib.h>
#endif

#include "jpeg.h"
#include "sample.h"
#include "warp_rows.h"

namespace segtrain {
namespace {

template <class Work>
int guarded(char* message, Work work) {
    try {
        work();
        return 0;
    } catch (const Unsupported& error) {
        std::snprintf(message, kMessage, "%s", error.what());
        return 2;
    } catch (const std::bad_alloc&) {
        std::snprintf(message, kMessage, "out of memory");
        return 1;
    } catch (const std::exception& error) {
        std::snprintf(message, kMessage, "%s", error.what());
        return 1;
    }
}

}  // namespace
}  // namespace segtrain

using namespace segtrain;

namespace {

Size stored_size(const StStored& stored) {
    Bytes file{stored.data, size_t(stored.size)};
    if (stored.kind == kJpeg) return jpeg_size(file);
    if (stored.kind == kPng) return png_header(file).size;
    return {stored.height, stored.width};
}

Picture region(const StStored& stored, Rect need, int channels, int denom, Bytes index, Scratch& scratch) {
    Bytes file{stored.data, size_t(stored.size)};
    if (stored.kind == kJpeg) return jpeg_region(file, need, denom, index, scratch);
    if (stored.kind == kPng) return png_region(file, need, channels, scratch);
    return {stored.data, size_t(stored.stride), {0, 0, stored.height, stored.width}, channels};
}

// The caller reports a picture of another size, because it knows both files and can suggest a fix.
void check(const StStored& stored, Size size) {
    Size found = stored_size(stored);
    if (found.height != size.height || found.width != size.width) throw Unsupported("another size than expected");
}

// The factor by which the DCT shrinks a JPEG. It is large enough that bilinear interpolation skips no pixel (up to 8,
// the most that libjpeg offers), and the decoded picture is never smaller than `scaled`.
int reduction(const Geometry& geometry) {
    double step = std::min(double(geometry.size.height) / geometry.scaled.height, double(geometry.size.width) / geometry.scaled.width);
    int denom = 1;
    while (denom < 8 && step / denom > 2) denom *= 2;
    return denom;
}

void copy_out(const Picture& picture, Size size, uint8_t* out) {
    size_t row = size_t(size.width) * picture.channels;
    if (picture.pixels == out && picture.stride == row) return;  // it was decoded in place
    for (int y = 0; y < size.height; ++y) std::memcpy(out + size_t(y) * row, picture.pixels + size_t(y) * picture.stride, row);
}

void copy_to_caller(const std::vector<uint8_t>& made, uint8_t** out, int64_t* size) {
    *out = static_cast<uint8_t*>(std::malloc(made.size()));
    if (!*out) throw std::bad_alloc();
    std::memcpy(*out, made.data(), made.size());
    *size = int64_t(made.size());
}

}  // namespace

ST_EXPORT int st_crop_floats(StRequest* request, const StFloats* floats, char* message) {
    return guarded(message, [&] {
        static thread_local Scratch image_memory, mask_memory;
        Geometry geometry{{request->size[0], request->size[1]},     {request->scaled[0], request->scaled[1]},
                          {request->crop[0], request->crop[1]},     request->top,
                          request->left,                            request->flip != 0,
                          request->colors[0],                      request->colors[1],
                          request->colors[2],                      request->colors[3]};
        request->image_done = 0;
        if (request->out_image) {
            check(request->image, geometry.size);
            int denom = request->image.kind == kJpeg ? reduction(geometry) : 1;
            Size reduced{(geometry.size.height + denom - 1) / denom, (geometry.size.width + denom - 1) / denom};
            Bytes index{request->index, size_t(request->index_size)};
            Picture picture = region(request->image, source_rect(geometry, reduced, true), 3, denom, index, image_memory);
            Floats form;
            if (floats) form = floats->at(request->out_image);
            warp(picture, reduced, geometry, request->fill, request->out_image, floats ? &form : nullptr);
        }
        request->image_done = 1;
        request->unknown_id = -1;
        if (request->out_mask) {
            check(request->mask, geometry.size);
            Picture ids = region(request->mask, source_rect(geometry, geometry.size, false), 1, 1, {nullptr, 0}, mask_memory);
            request->unknown_id = sample_mask(ids, geometry, request->lut, request->known, request->fill[3], request->out_mask);
        }
    });
}

ST_EXPORT int st_floats(const uint8_t* levels, int height, int width, const StFloats* floats, void* out, char* message) {
    return guarded(message, [&] { to_floats(levels, {height, width}, floats->at(out)); });
}

ST_EXPORT int st_size(const StStored* stored, int32_t size[2], char* message) {
    return guarded(message, [&] {
        Size found = stored_size(*stored);
        size[0] = found.height;
        size[1] = found.width;
    });
}

ST_EXPORT int st_whole(const StStored* stored, int channels, uint8_t* out, int height, int width, char* message) {
    return guarded(message, [&] {
        static thread_local Scratch memory;
        check(*stored, {height, width});
        Scratch in_place(out, size_t(height) * size_t(width) * size_t(channels));
        bool fits = stored->kind == kJpeg;  // a decoded JPEG has no gaps between its rows
        Picture picture = region(*stored, {0, 0, height, width}, channels, 1, {nullptr, 0}, fits ? in_place : memory);
        copy_out(picture, {height, width}, out);
    });
}

ST_EXPORT int st_check(const StStored* stored, int channels, uint8_t** index, int64_t* index_size, char* message) {
    return guarded(message, [&] {
        static thread_local Scratch memory;
        Bytes file{stored->data, size_t(stored->size)};
        Size size = stored_size(*stored);
        if (stored->kind == kJpeg) {
            Jpeg jpeg = parse_jpeg(file);
            if (jpeg.simple() && !jpeg.restart) {
                std::vector<uint8_t> found = jpeg_index(file);
                // Decode one pixel, because only libjpeg checks the other tables.
                jpeg_region(file, {0, 0, 1, 1}, 8, {nullptr, 0}, memory);
                copy_to_caller(found, index, index_size);
                return;
            }
        }
        region(*stored, {0, 0, size.height, size.width}, channels, 1, {nullptr, 0}, memory);
    });
}

ST_EXPORT int st_jpeg_index(const uint8_t* data, int64_t size, uint8_t** out, int64_t* out_size, char* message) {
    return guarded(message, [&] {
        copy_to_caller(jpeg_index({data, size_t(size)}), out, out_size);
    });
}

ST_EXPORT int64_t st_read(const char* path, int64_t offset, int64_t length, uint8_t* out, int64_t room) {
    // O_NONBLOCK: a pipe without a writer does not wait.
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return -1;
    struct stat status;
    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) length = -1;
    else if (length < 0) length = int64_t(status.st_size) - offset;
    for (int64_t done = 0; length <= room && done < length;) {
        ssize_t count = pread(file, out + done, size_t(length - done), off_t(offset + done));
        if (count <= 0) length = -1;
        done += count;
    }
    close(file);
    return length;
}

ST_EXPORT void st_free(uint8_t* memory) { std::free(memory); }

ST_EXPORT int st_layout() { return int(sizeof(StRequest)); }

ST_EXPORT void st_simd(int most) { allow_avx2(most > 0); }

ST_EXPORT const char* st_libraries() {
#define ST_TEXT_OF(x) #x
#define ST_TEXT(x) ST_TEXT_OF(x)
#ifdef LIBJPEG_TURBO_VERSION
#define ST_JPEG "libjpeg-turbo " ST_TEXT(LIBJPEG_TURBO_VERSION)
#else
#define ST_JPEG "libjpeg " ST_TEXT(JPEG_LIB_VERSION)
#endif
#ifdef ST_LIBDEFLATE
    return ST_JPEG ", libdeflate " LIBDEFLATE_VERSION_STRING;
#else
    return ST_JPEG ", zlib " ZLIB_VERSION;
#endif
}
