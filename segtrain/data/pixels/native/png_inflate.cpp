// Inflating of a PNG's data: by libdeflate if it is available, which is two to three times as fast, else by zlib.
#include <cstring>
#include <memory>

#include "png_parts.h"

#ifdef ST_LIBDEFLATE
#include <libdeflate.h>
#else
#include <algorithm>
#include <climits>
#include <zlib.h>
#endif

namespace segtrain {

#ifdef ST_LIBDEFLATE

namespace {

libdeflate_decompressor* decompressor() {
    struct Free {
        void operator()(libdeflate_decompressor* one) const { libdeflate_free_decompressor(one); }
    };
    static thread_local std::unique_ptr<libdeflate_decompressor, Free> mine;
    if (!mine) mine.reset(libdeflate_alloc_decompressor());
    if (!mine) throw std::bad_alloc();
    return mine.get();
}

libdeflate_result inflate(Bytes stream, uint8_t* out, size_t size, size_t* got) {
#ifdef ST_FUZZING  // ignore the checksum, so that mutated data is decoded
    if (stream.size < 6) return LIBDEFLATE_BAD_DATA;
    return libdeflate_deflate_decompress(decompressor(), stream.data + 2, stream.size - 6, out, size, got);
#else
    return libdeflate_zlib_decompress(decompressor(), stream.data, stream.size, out, size, got);
#endif
}

// libdeflate may stop this many bytes before the end of the output, because it does not start a stored block that does
// not fit.
constexpr size_t kUnwritten = 65535 + 512;
// An upper limit for the bytes that it writes ahead of those that it has decoded. It really is about 40.
constexpr size_t kAhead = 4096;

int64_t rows_of(size_t bytes, size_t stride) { return int64_t((bytes + stride - 1) / stride); }

}  // namespace

uint32_t png_crc(Bytes bytes) { return libdeflate_crc32(0, bytes.data, bytes.size); }

void inflate_whole(Bytes stream, uint8_t* out, size_t size) {
    size_t got = 0;
    libdeflate_result result = inflate(stream, out, size, &got);
    if (result == LIBDEFLATE_INSUFFICIENT_SPACE) throw Fault("the PNG has more pixel data than its header says");
    if (result != LIBDEFLATE_SUCCESS) throw Fault("the PNG's pixel data are damaged");
    if (got != size) throw Fault("the PNG has less pixel data than its header says");
}

size_t inflate_begin_room(int64_t rows, size_t stride) {
    return size_t(rows + rows_of(kAhead, stride)) * stride + 1 + kUnwritten;
}

// libdeflate cannot stop after the rows that are needed. It fails when the output is full, and does not say what it has
// written by then. But deflate data can only be inflated from front to back. So the rows are complete if a byte far
// enough behind them was written. This `proof` is the filter byte of a later row: it is set to 255 first, and a filter
// byte is 0 to 4.
bool inflate_begin(Bytes stream, uint8_t* out, int64_t rows, size_t stride) {
    uint8_t* proof = out + size_t(rows + rows_of(kAhead, stride)) * stride;
    *proof = 255;
    size_t got = 0;
    libdeflate_result result = inflate(stream, out, inflate_begin_room(rows, stride), &got);
    if (result == LIBDEFLATE_BAD_DATA) throw Fault("the PNG's pixel data are damaged");
    return result == LIBDEFLATE_INSUFFICIENT_SPACE && *proof != 255;
}

bool inflate_strip(Bytes blocks, uint8_t* out, size_t size) {
    size_t got = 0;
    return libdeflate_deflate_decompress(decompressor(), blocks.data, blocks.size, out, size, &got) == LIBDEFLATE_SUCCESS &&
           got == size;
}

#else  // zlib

namespace {

// Inflates `size` bytes, or with `end` everything up to the stream's end. Returns zlib's last code, and the number of
// bytes in `got`.
int inflate(Bytes stream, uint8_t* out, size_t size, int window, bool end, size_t* got) {
    z_stream state;
    std::memset(&state, 0, sizeof state);
    if (inflateInit2(&state, window) != Z_OK) throw std::bad_alloc();
    uint8_t beyond;  // zlib needs 1 more byte to find the stream's end, and writes to it if the data go on
    size_t in = 0, done = 0;
    int code = Z_OK;
    while (code == Z_OK && (done < size || end)) {
        uInt give = uInt(std::min<size_t>(stream.size - in, INT_MAX));
        uInt room = uInt(std::min<size_t>(size - done, INT_MAX));
        bool full = room == 0;
        state.next_in = const_cast<Bytef*>(stream.data + in);
        state.avail_in = give;
        state.next_out = full ? &beyond : out + done;
        state.avail_out = full ? 1 : room;
        code = ::inflate(&state, Z_NO_FLUSH);
        in += give - state.avail_in;
        if (full && state.avail_out == 0) code = Z_BUF_ERROR;
        if (!full) done += room - state.avail_out;
#ifdef ST_FUZZING  // ignore the checksum, so that mutated data is decoded
        if (code == Z_DATA_ERROR && done == size) code = Z_STREAM_END;
#endif
    }
    inflateEnd(&state);
    *got = done;
    return code;
}

}  // namespace

uint32_t png_crc(Bytes bytes) {
    uLong crc = 0;
    for (size_t at = 0; at < bytes.size; at += INT_MAX)
        crc = crc32(crc, bytes.data + at, uInt(std::min<size_t>(bytes.size - at, INT_MAX)));
    return uint32_t(crc);
}

void inflate_whole(Bytes stream, uint8_t* out, size_t size) {
    size_t got = 0;
    int code = inflate(stream, out, size, 15, true, &got);
    if (code == Z_BUF_ERROR && got == size) throw Fault("the PNG has more pixel data than its header says");
    if (code != Z_STREAM_END) throw Fault("the PNG's pixel data are damaged");
    if (got != size) throw Fault("the PNG has less pixel data than its header says");
}

size_t inflate_begin_room(int64_t rows, size_t stride) { return size_t(rows) * stride; }

bool inflate_begin(Bytes stream, uint8_t* out, int64_t rows, size_t stride) {
    size_t got = 0, size = size_t(rows) * stride;
    int code = inflate(stream, out, size, 15, false, &got);
    if (got != size && code == Z_STREAM_END) throw Fault("the PNG has less pixel data than its header says");
    if (got != size) throw Fault("the PNG's pixel data are damaged");
    return true;
}

bool inflate_strip(Bytes blocks, uint8_t* out, size_t size) {
    size_t got = 0;
    return inflate(blocks, out, size, -15, true, &got) == Z_STREAM_END && got == size;
}

#endif

}  // namespace segtrain
