// Decoding of a rectangle of a JPEG with libjpeg-turbo, and rewriting of a JPEG with restart markers.
//
// Only the rows and columns that the crop needs are decoded, and a margin around them, because chroma upsampling reads
// neighboring pixels. If possible, jpeg_cut first makes a small JPEG of only these tiles.
#include <csetjmp>
#include <cstdio>
#include <cstdlib>

#include <jpeglib.h>
#include <jerror.h>

#include "jpeg_entropy.h"
#include "jpeg_pixels.h"
#include "jpeg_sample.h"

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

std::string reason(const char* text) { return std::string("the JPEG is damaged (") + text + ")"; }

// Decodes the rows of `need`, and its columns or more; `covered` says which. If `run` returns false, manager.text has
// the error.
struct Decoder {
    jpeg_decompress_struct info;
    jpeg_progress_mgr progress;
    ErrorManager manager;
    Rect covered;
    uint8_t* pixels;
    bool unknown_layout = false;  // `entropy` was not used, because libjpeg's private structure has an unknown layout

    // `entropy`: decodes the coefficients, or null for libjpeg's own decoder.
    bool run(Bytes file, Rect need, int denom, Entropy* entropy, Scratch& scratch) {
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
        unknown_layout = entropy && !Entropy::layout_known(&info);
        if (unknown_layout) ERREXIT(&info, JERR_NOT_COMPILED);
        if (entropy) entropy->attach(&info);
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
        if (info.output_scanline == info.output_height) {
            if (!entropy) jpeg_finish_decompress(&info);
            else if (!entropy->ended_well()) ERREXIT(&info, JWRN_JPEG_EOF);
        }
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

// Decodes a sample with libjpeg's own entropy decoder and with the faster one. Returns what is wrong, or "".
std::string check_entropy() {
    jpeg_error_mgr messages;
    jpeg_std_error(&messages);
    const char* owner = messages.jpeg_message_table[JMSG_COPYRIGHT];
    if (!std::strstr(owner, "libjpeg-turbo") && !std::strstr(owner, "Commander")) return "this libjpeg is not libjpeg-turbo";
    Bytes file{kSampleJpeg, sizeof kSampleJpeg};
    Jpeg jpeg = parse_jpeg(file);
    Rect all{0, 0, jpeg.size.height, jpeg.size.width};
    Scratch own_memory, fast_memory;
    Decoder own, fast;
    if (!own.run(file, all, 1, nullptr, own_memory)) return std::string("libjpeg cannot decode a sample: ") + own.manager.text;
    Entropy entropy(file, jpeg);
    if (!fast.run(file, all, 1, &entropy, fast_memory))
        return fast.unknown_layout ? "this libjpeg has an unknown layout" : std::string("a sample fails: ") + fast.manager.text;
    bool same = std::memcmp(own.pixels, fast.pixels, size_t(all.height()) * size_t(all.width()) * 3) == 0;
    return same ? "" : "a sample does not have the same pixels as with libjpeg's own decoder";
}

Picture decode(Bytes file, const Jpeg& jpeg, Rect need, int denom, Scratch& scratch) {
    Decoder decoder;
    std::unique_ptr<Entropy> entropy(jpeg.simple() && !*jpeg_entropy_fault() ? new Entropy(file, jpeg) : nullptr);
    if (!decoder.run(file, need, denom, entropy.get(), scratch)) throw Fault(reason(decoder.manager.text));
    return {decoder.pixels, size_t(decoder.covered.width()) * 3, decoder.covered, 3};
}

}  // namespace

const char* jpeg_entropy_fault() {
    static const std::string fault = check_entropy();  // once per process, at the first use
    return fault.c_str();
}

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
        return decode(file, jpeg, wide, denom, scratch);
    Rect mcus{wide.top / high, wide.left / across, std::min((wide.bottom + high - 1) / high, jpeg.mcu_rows),
              std::min((wide.right + across - 1) / across, jpeg.mcu_columns)};
    static thread_local Scratch cut_memory;
    Rect covered{0, 0, 0, 0};
    Bytes cut = jpeg_cut(file, jpeg, mcus, index, &covered, cut_memory);
    if (!cut.size) return decode(file, jpeg, wide, denom, scratch);
    int down = covered.top * high, right = covered.left * across;
    Rect inside{wide.top - down, wide.left - right, wide.bottom - down, wide.right - right};
    Picture picture = decode(cut, parse_jpeg(cut), inside, denom, scratch);
    picture.covers = {picture.covers.top + down, picture.covers.left + right, picture.covers.bottom + down,
                      picture.covers.right + right};
    return picture;
}

namespace {

// MCUs per restart interval: the divisor of a row's number of MCUs that is closest to `pixels` pixels, and at least
// half as long.
int restart_interval(const Jpeg& jpeg, int pixels) {
    int interval = jpeg.mcu_columns, wanted = std::max(1, pixels / jpeg.mcu_width);
    for (int n = 2; n < jpeg.mcu_columns; ++n)
        if (jpeg.mcu_columns % n == 0 && n * 2 >= wanted && std::abs(n - wanted) < std::abs(interval - wanted)) interval = n;
    return interval;
}

// Writes the new JPEG to `memory` and `length`. If `run` returns false, manager.text has the error.
struct Transcoder {
    jpeg_decompress_struct from;
    jpeg_compress_struct to;
    jpeg_progress_mgr progress;
    ErrorManager manager;
    unsigned char *room, *memory;
    unsigned long length;

    bool run(Bytes file, int interval) {
        prepare(from, manager, progress);
        std::memset(&to, 0, sizeof to);
        to.err = from.err;
        length = static_cast<unsigned long>(file.size) * 2 + (1 << 16);
        // If this is too small, libjpeg allocates another.
        memory = room = static_cast<unsigned char*>(std::malloc(length));
        if (setjmp(manager.jump)) {
            jpeg_destroy_compress(&to);
            jpeg_destroy_decompress(&from);
            std::free(room);
            return false;
        }
        jpeg_create_decompress(&from);
        jpeg_create_compress(&to);
        if (!room) ERREXIT1(&from, JERR_OUT_OF_MEMORY, 0);
        from.progress = &progress;
        from.mem->max_memory_to_use = kMaxMemory;
        jpeg_mem_src(&from, file.data, static_cast<unsigned long>(file.size));
        jpeg_save_markers(&from, JPEG_APP0 + 1, 0xFFFF);  // Exif
        jpeg_save_markers(&from, JPEG_APP0 + 2, 0xFFFF);  // ICC profile
        jpeg_read_header(&from, TRUE);
        jvirt_barray_ptr* coefficients = jpeg_read_coefficients(&from);
        jpeg_copy_critical_parameters(&from, &to);
        to.restart_interval = unsigned(interval);
        to.optimize_coding = TRUE;
        jpeg_mem_dest(&to, &memory, &length);
        jpeg_write_coefficients(&to, coefficients);
        for (jpeg_saved_marker_ptr marker = from.marker_list; marker; marker = marker->next)
            jpeg_write_marker(&to, marker->marker, marker->data, marker->data_length);
        jpeg_finish_compress(&to);
        jpeg_finish_decompress(&from);
        jpeg_destroy_compress(&to);
        jpeg_destroy_decompress(&from);
        if (memory != room) std::free(room);
        return true;
    }
};

}  // namespace

uint8_t* jpeg_with_restarts(Bytes file, int interval_pixels, size_t* size) {
    Jpeg jpeg = parse_jpeg(file);
    if (jpeg.components == 4 || jpeg.components == 2) throw Unsupported("the JPEG has " + std::to_string(jpeg.components) + " components");
    Transcoder transcoder;
    if (!transcoder.run(file, restart_interval(jpeg, interval_pixels))) throw Fault(reason(transcoder.manager.text));
    *size = transcoder.length;
    return transcoder.memory;
}

}  // namespace segtrain
