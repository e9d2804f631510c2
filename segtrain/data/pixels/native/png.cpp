// Decoding of a rectangle of a PNG. (PNG specification, third edition)
//
// It does only the work that the rectangle needs. Inflating stops after the rectangle's last row. If the file is in
// strips (segtrain/data/shards/png_strips.py), only the strips of the rectangle are inflated. Filters are undone up to
// its right edge, starting at the closest row whose filter does not use the row above.
#include <algorithm>
#include <cstring>
#include <string>

#include "png_parts.h"

namespace segtrain {

namespace {

constexpr uint64_t kMostInflated = 1032;  // one byte of deflate data gives at most this many bytes

// The layout of a picture's filtered rows, and the part of them that is needed.
struct RowLayout {
    size_t stride;    // bytes of a row, including its filter byte
    size_t needed;    // bytes of a row's data up to the right edge
    int pixel;        // bytes of a pixel, at least 1
    int top, bottom;  // the rows [top, bottom) are needed
    uint8_t* zeros;   // room for a row of zeros and kPngSlack
};

// Undoes the filters of the needed rows. `rows` points to row `first` of the picture. Returns false if a filter needs
// the row above `first`.
bool unfilter(uint8_t* rows, int first, const RowLayout& layout) {
    int start = layout.top;
    auto filter = [&](int row) {
        uint8_t one = rows[size_t(row - first) * layout.stride];
        if (one > 4) throw Fault("the PNG is damaged (filter " + std::to_string(one) + " in row " + std::to_string(row) + ")");
        return one;
    };
    for (int row = layout.top; row < layout.bottom; row++) filter(row);
    while (start > first && filter(start) > 1) start--;  // the filters None (0) and Sub (1) do not use the row above
    if (start == first && first > 0 && filter(first) > 1) return false;
    std::memset(layout.zeros, 0, layout.needed + kPngSlack);
    unfilter_rows(rows + size_t(start - first) * layout.stride, layout.stride, layout.bottom - start, layout.needed,
                  layout.pixel, layout.zeros);
    return true;
}

// Rows per strip, or 0 if the file is not in strips: each IDAT chunk must be the strip that the stRP chunk describes.
int strip_rows(const Chunks& chunks) {
    const Bytes& table = chunks.strips;
    if (table.size < 8) return 0;
    uint32_t rows = big_endian(table.data);
    size_t height = size_t(chunks.header.size.height), count = chunks.data.size();
    if (rows == 0 || rows > height || count != (height + rows - 1) / rows || table.size != 4 + 4 * count) return 0;
    uint64_t offset = 2;  // after the zlib header
    for (size_t k = 0; k < count; k++) {
        if (big_endian(table.data + 4 + 4 * k) != offset || chunks.data[k].size < 6) return 0;
        offset += chunks.data[k].size - (k == 0 ? 2 : 0);
    }
    return int(rows);
}

// Inflates only the strips with needed rows, and undoes their filters. Returns the first row at `raw`, or -1 if this
// cannot be done: then call read_rows.
int read_strips(Bytes file, const Chunks& chunks, const RowLayout& layout, uint8_t* joined, uint8_t* raw) {
    int rows = strip_rows(chunks), height = chunks.header.size.height;
    if (!rows) return -1;
    int first = layout.top / rows, last = (layout.bottom - 1) / rows, count = int(chunks.data.size());
    if (first == 0 && last == count - 1) return -1;  // all strips are needed: read_rows also checks the Adler-32
    uint8_t* end = joined;
    for (int k = first; k <= last; k++) {
        Bytes body = chunks.data[size_t(k)];
        check_crc(file, body);
        if (k == 0) body = {body.data + 2, body.size - 2};
        if (k == count - 1) body.size -= 4;
        std::memcpy(end, body.data, body.size);
        end += body.size;
    }
    if (last < count - 1) {  // deflate data must end with a final block: append an empty one
        *end++ = 3;
        *end++ = 0;
    }
    int bottom = last == count - 1 ? height : (last + 1) * rows;
    if (!inflate_strip({joined, size_t(end - joined)}, raw, size_t(bottom - first * rows) * layout.stride)) return -1;
    return unfilter(raw, first * rows, layout) ? first * rows : -1;
}

void read_rows(Bytes file, const Chunks& chunks, const RowLayout& layout, uint8_t* joined, uint8_t* raw) {
    for (const Bytes& body : chunks.data) check_crc(file, body);
    Bytes stream = chunks.data[0];
    if (chunks.data.size() > 1) {
        uint8_t* end = joined;
        for (const Bytes& body : chunks.data) {
            if (body.size) std::memcpy(end, body.data, body.size);
            end += body.size;
        }
        stream = {joined, chunks.data_size};
    }
    size_t total = size_t(chunks.header.size.height) * layout.stride;
    bool begin = inflate_begin_room(layout.bottom, layout.stride) < total;
    if (!begin || !inflate_begin(stream, raw, layout.bottom, layout.stride)) inflate_whole(stream, raw, total);
    unfilter(raw, 0, layout);
}

// Writes the values of pixels [left, right) of a row with less than 8 bits per pixel.
void unpack(const uint8_t* row, int left, int right, int bits, uint8_t* out) {
    int mask = (1 << bits) - 1, per_byte = 8 / bits;
    for (int x = left; x < right; x++) *out++ = uint8_t(row[x / per_byte] >> (8 - bits - x % per_byte * bits) & mask);
}

template <int step, int green, int blue>
inline __attribute__((always_inline))
void pick_rgb(const uint8_t* __restrict from, size_t count, uint8_t* __restrict out) {
    for (size_t i = 0; i < count; i++) {
        out[3 * i] = from[step * i];
        out[3 * i + 1] = from[step * i + green];
        out[3 * i + 2] = from[step * i + blue];
    }
}

// Writes RGB of 8 bits from `count` gray or color pixels of 8 or 16 bits. Drops alpha and the lower 8 of 16 bits.
ST_CLONES void to_rgb(const uint8_t* __restrict from, size_t count, int color_type, int bits, uint8_t* __restrict out) {
    bool wide = bits == 16;
    if (color_type == kGray) return wide ? pick_rgb<2, 0, 0>(from, count, out) : pick_rgb<1, 0, 0>(from, count, out);
    if (color_type == kGrayAlpha) return wide ? pick_rgb<4, 0, 0>(from, count, out) : pick_rgb<2, 0, 0>(from, count, out);
    if (color_type == kColor) return wide ? pick_rgb<6, 2, 4>(from, count, out) : pick_rgb<3, 1, 2>(from, count, out);
    return wide ? pick_rgb<8, 2, 4>(from, count, out) : pick_rgb<4, 1, 2>(from, count, out);
}

// Writes the RGB color of each of 256 values of a gray or palette picture. Values outside the palette are black.
void color_table(const Chunks& chunks, uint8_t (*table)[3]) {
    std::memset(table, 0, 256 * 3);
    if (chunks.header.color_type == kPalette) {
        size_t size = chunks.palette.size;
        if (!size || size % 3 || size > 768) throw Fault("the PNG has no whole palette");
        std::memcpy(table, chunks.palette.data, size);
    } else {
        int most = (1 << chunks.header.bits) - 1;
        for (int v = 0; v <= most; v++) std::memset(table[v], v * 255 / most, 3);
    }
}

// Writes the rectangle `need` as RGB, or the values of less than 8 bits. `rows`: the picture's row need.top, without
// its filter byte. `values`: room for a row of values.
void convert(const Chunks& chunks, const uint8_t* rows, size_t stride, Rect need, int channels, uint8_t* values, uint8_t* out) {
    const PngHeader& header = chunks.header;
    bool looked_up = header.bits < 8 || header.color_type == kPalette;
    uint8_t table[256][3];
    if (looked_up && channels == 3) color_table(chunks, table);
    size_t width = size_t(need.width()), pixel = size_t(header.bits / 8 * samples(header.color_type));
    for (int y = 0; y < need.height(); y++, rows += stride, out += width * size_t(channels)) {
        const uint8_t* from = rows + size_t(need.left) * pixel;
        if (header.bits < 8) {
            unpack(rows, need.left, need.right, header.bits, channels == 1 ? out : values);
            from = values;
        }
        if (channels == 1) continue;
        if (looked_up)
            for (size_t x = 0; x < width; x++) std::memcpy(out + 3 * x, table[from[x]], 3);
        else
            to_rgb(from, width, header.color_type, header.bits, out);
    }
}

}  // namespace

Picture png_region(Bytes file, Rect need, int channels, Scratch& scratch) {
    Chunks chunks = read_chunks(file, false);
    const PngHeader& header = chunks.header;
    Size size = header.size;
    if (need.top < 0 || need.left < 0 || need.top >= need.bottom || need.left >= need.right || need.bottom > size.height ||
        need.right > size.width)
        throw Fault("the region lies outside of the picture");
    if (header.interlaced) throw Unsupported("an interlaced PNG");
    bool single = header.color_type == kGray || header.color_type == kPalette;
    if (channels == 1 && (!single || header.bits > 8))
        throw Unsupported("a mask must be a PNG of one channel with at most 8 bits");

    size_t depth = size_t(header.bits * samples(header.color_type));  // bits per pixel
    RowLayout layout{(size_t(size.width) * depth + 7) / 8 + 1, (size_t(need.right) * depth + 7) / 8,
                     int((depth + 7) / 8), need.top, need.bottom, nullptr};
    size_t total = size_t(size.height) * layout.stride;
    if (chunks.data_size * kMostInflated < total) throw Fault("the PNG has less pixel data than its header says");

    bool direct = header.bits == 8 && (channels == 1 || header.color_type == kColor);
    size_t out_size = direct ? 0 : size_t(need.height()) * size_t(need.width()) * size_t(channels) + size_t(need.width());
    uint8_t* joined = scratch.get(chunks.data_size + 2 + layout.needed + 2 * kPngSlack + total + out_size);
    layout.zeros = joined + chunks.data_size + 2;
    uint8_t* raw = layout.zeros + layout.needed + kPngSlack;
    uint8_t* values = raw + total + kPngSlack;

    int first = read_strips(file, chunks, layout, joined, raw);
    if (first < 0) {
        read_rows(file, chunks, layout, joined, raw);
        first = 0;
    }
    const uint8_t* rows = raw + size_t(need.top - first) * layout.stride + 1;
    if (direct) return {rows, layout.stride, {need.top, 0, need.bottom, need.right}, channels};
    uint8_t* out = values + need.width();
    convert(chunks, rows, layout.stride, need, channels, values, out);
    return {out, size_t(need.width()) * size_t(channels), need, channels};
}

}  // namespace segtrain
