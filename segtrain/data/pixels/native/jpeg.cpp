// Decoding of a rectangle of a JPEG with libjpeg-turbo.
//
// Only the rows and columns that the crop needs are decoded, and a margin around them, because chroma upsampling reads
// neighboring pixels. If possible, jpeg_cut first makes a small JPEG of only these tiles.
#include <algorithm>
#include <csetjmp>
#include <cstdio>

#include <jpeglib.h>
#include <jerror.h>

#include "jpeg.h"

namespace segtrain {

namespace {

constexpr int kMaxScans = 100;         // progressive files of cameras have about 10; a decompression bomb has thousands
constexpr long kMaxMemory = 2L << 30;  // bytes: the coefficients of a progressive picture of kMaxPixels
constexpr int kMargin = 2;             // pixels around the region that chroma upsampling may read

// libjpeg reports an error by longjmp, which runs no destructors. So no object between setjmp and longjmp may own
// memory.
struct ErrorManager {
    jpeg_error_mgr base;
    jmp_buf jump;
    char text[JMSG_LENGTH_MAX];
};

void on_error(j_common_ptr info) {
    ErrorManager* manager = reinterpret_cast<ErrorManager*>(info->err);
    (*info->err->format_message)(info, manager->text);
    longjmp(manager->jump, 1);
}

void on_message(j_common_ptr info, int level) {
    // A warning means that pixels are wrong. The exception is extra bytes between two markers, which some cameras
    // write.
    if (level < 0 && info->err->msg_code != JWRN_EXTRANEOUS_DATA) on_error(info);
}

void on_progress(j_common_ptr info) {
    if (info->is_decompressor && reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kMaxScans)
        ERREXITS(info, JERR_BAD_PROGRESSION, "");
}

void prepare(jpeg_decompress_struct& info, ErrorManager& manager, jpeg_progress_mgr& progress) {
    info.err = jpeg_std_error(&manager.base);
    manager.base.error_exit = on_error;
    manager.base.emit_message = on_message;
    manager.text[0] = 0;
    progress.progress_monitor = on_progress;
}

// Decodes the rows of `need`, and its columns or more; `covered` says which. If `run` returns false, manager.text has
// the error.
struct Decoder {
    jpeg_decompress_struct info;
    jpeg_progress_mgr progress;
    ErrorManager manager;
    Rect covered;
    uint8_t* pixels;

    bool run(Bytes file, Rect need, int denom, Scratch& scratch) {
        prepare(info, manager, progress);
        if (setjmp(manager.jump)) {
            jpeg_destroy_decompress(&info);
            return false;
        }
        jpeg_create_decompress(&info);
        info.progress = &progress;
        info.mem->max_memory_to_use = kMaxMemory;
        jpeg_mem_src(&info, file.data, static_cast<unsigned long>(file.size));
        jpeg_read_header(&info, TRUE);
        info.out_color_space = JCS_RGB;
        info.scale_num = 1;
        info.scale_denom = unsigned(denom);
        info.dct_method = JDCT_ISLOW;
        jpeg_start_decompress(&info);
        if (need.bottom > int(info.output_height) || need.right > int(info.output_width)) ERREXIT(&info, JERR_BAD_CROP_SPEC);
        JDIMENSION left = JDIMENSION(need.left), width = JDIMENSION(need.width());
        if (width < info.output_width) jpeg_crop_scanline(&info, &left, &width);
        if (need.top > 0) jpeg_skip_scanlines(&info, JDIMENSION(need.top));
        covered = {need.top, int(left), need.bottom, int(left + width)};
        size_t stride = size_t(width) * 3;
        pixels = take(scratch, stride * size_t(need.height()));
        if (!pixels) ERREXIT1(&info, JERR_OUT_OF_MEMORY, 0);
        while (int(info.output_scanline) < need.bottom) {
            JSAMPROW rows[8];
            int first = int(info.output_scanline) - need.top;
            int count = std::min(8, need.bottom - int(info.output_scanline));
            for (int k = 0; k < count; ++k) rows[k] = pixels + size_t(first + k) * stride;
            jpeg_read_scanlines(&info, rows, JDIMENSION(count));
        }
        // At the last row, also read the end marker, to detect damage near it.
        if (info.output_scanline == info.output_height) jpeg_finish_decompress(&info);
        jpeg_destroy_decompress(&info);
        return true;
    }

    static uint8_t* take(Scratch& scratch, size_t bytes) {
        try {
            return scratch.get(bytes);
        } catch (const std::bad_alloc&) {
            return nullptr;
        }
    }
};

Rect widened(Rect need, Size whole) {
    return {std::max(0, need.top - kMargin), std::max(0, need.left - kMargin), std::min(whole.height, need.bottom + kMargin),
            std::min(whole.width, need.right + kMargin)};
}

Picture decode(Bytes file, Rect need, int denom, Scratch& scratch) {
    Decoder decoder;
    if (!decoder.run(file, need, denom, scratch)) throw Fault(std::string("the JPEG is damaged (") + decoder.manager.text + ")");
    return {decoder.pixels, size_t(decoder.covered.width()) * 3, decoder.covered, 3};
}

}  // namespace

Size jpeg_size(Bytes file) { return parse_jpeg(file).size; }

Picture jpeg_region(Bytes file, Rect need, int denom, Bytes index, Scratch& scratch) {
    Jpeg jpeg = parse_jpeg(file);
    if (jpeg.components == 4 || jpeg.components == 2) throw Unsupported("the JPEG has " + std::to_string(jpeg.components) + " components");
    Size whole{(jpeg.size.height + denom - 1) / denom, (jpeg.size.width + denom - 1) / denom};
    if (need.top < 0 || need.left < 0 || need.top >= need.bottom || need.left >= need.right || need.bottom > whole.height ||
        need.right > whole.width)
        throw Fault("the requested region lies outside the JPEG");
    Rect wide = widened(need, whole);
    int high = jpeg.mcu_height / denom, across = jpeg.mcu_width / denom;
    // If nearly all rows are needed, cutting would save nothing.
    if (high < 1 || across < 1 || wide.bottom - wide.top + 4 * high > whole.height)
        return decode(file, wide, denom, scratch);
    Rect mcus{wide.top / high, wide.left / across, std::min((wide.bottom + high - 1) / high, jpeg.mcu_rows),
              std::min((wide.right + across - 1) / across, jpeg.mcu_columns)};
    static thread_local Scratch cut_memory;
    Rect covered{0, 0, 0, 0};
    Bytes cut = jpeg_cut(file, jpeg, mcus, index, &covered, cut_memory);
    if (!cut.size) return decode(file, wide, denom, scratch);
    int down = covered.top * high, right = covered.left * across;
    Rect inside{wide.top - down, wide.left - right, wide.bottom - down, wide.right - right};
    Picture picture = decode(cut, inside, denom, scratch);
    picture.covers = {picture.covers.top + down, picture.covers.left + right, picture.covers.bottom + down,
                      picture.covers.right + right};
    return picture;
}

}  // namespace segtrain
