// Cutting of a small JPEG out of a large one, without decoding it.
//
// If the file has restart markers, the intervals between them are copied. Otherwise an index says at which bit the
// tiles of a row begin. Their bits are copied, one row of MCUs after the other. Only the first DC value of each component
// in a row is rewritten: it is stored as the difference from a block that is not copied, and becomes the difference from
// the last block of the row above. There are no restart markers between the rows: libjpeg-turbo decodes a file with
// restart markers by its slower loop.
#include "jpeg_bits.h"

namespace segtrain {

namespace {

uint8_t* put_bytes(uint8_t* out, const void* bytes, size_t size) {
    std::memcpy(out, bytes, size);
    return out + size;
}

uint8_t* put_word(uint8_t* out, int value) {
    *out++ = uint8_t(value >> 8);
    *out++ = uint8_t(value);
    return out;
}

uint8_t* put_table(uint8_t* out, int kind, int slot, const HuffmanSpec& spec) {
    int total = spec.total();
    *out++ = 0xFF;
    *out++ = 0xC4;
    out = put_word(out, 19 + total);
    *out++ = uint8_t(kind << 4 | slot);
    out = put_bytes(out, spec.counts + 1, 16);
    return put_bytes(out, spec.symbols, size_t(total));
}

size_t header_room(const Jpeg& jpeg) {
    size_t room = 8 * (21 + 256) + 64;
    for (const Bytes& segment : jpeg.kept) room += segment.size;
    return room;
}

uint8_t* put_header(uint8_t* out, const Jpeg& jpeg, Size size, int restart, const HuffmanSpec dc[4]) {
    *out++ = 0xFF;
    *out++ = 0xD8;
    for (const Bytes& segment : jpeg.kept) out = put_bytes(out, segment.data, segment.size);
    bool done[2][4] = {};
    for (int c = 0; c < jpeg.components; ++c) {
        int d = jpeg.component[c].dc, a = jpeg.component[c].ac;
        if (!done[0][d]) out = put_table(out, 0, d, dc[d]);
        if (!done[1][a]) out = put_table(out, 1, a, jpeg.ac[a]);
        done[0][d] = done[1][a] = true;
    }
    *out++ = 0xFF;
    *out++ = uint8_t(jpeg.frame);
    out = put_word(out, 8 + 3 * jpeg.components);
    *out++ = 8;
    out = put_word(put_word(out, size.height), size.width);
    *out++ = uint8_t(jpeg.components);
    for (int c = 0; c < jpeg.components; ++c) {
        const JpegComponent& component = jpeg.component[c];
        *out++ = uint8_t(component.id);
        *out++ = uint8_t(component.h << 4 | component.v);
        *out++ = uint8_t(component.quantization);
    }
    if (restart) {
        *out++ = 0xFF;
        *out++ = 0xDD;
        out = put_word(put_word(out, 4), restart);
    }
    *out++ = 0xFF;
    *out++ = 0xDA;
    out = put_word(out, 6 + 2 * jpeg.components);
    *out++ = uint8_t(jpeg.components);
    for (int c = 0; c < jpeg.components; ++c) {
        *out++ = uint8_t(jpeg.component[c].id);
        *out++ = uint8_t(jpeg.component[c].dc << 4 | jpeg.component[c].ac);
    }
    *out++ = 0;
    *out++ = 63;
    *out++ = 0;
    return out;
}

Size cut_size(const Jpeg& jpeg, Rect mcus) {
    return {std::min(mcus.bottom * jpeg.mcu_height, jpeg.size.height) - mcus.top * jpeg.mcu_height,
            std::min(mcus.right * jpeg.mcu_width, jpeg.size.width) - mcus.left * jpeg.mcu_width};
}

// Cuts at restart markers. A row of MCUs must be a whole number of intervals, or an interval a whole number of rows.
Bytes cut_restarts(Bytes file, const Jpeg& jpeg, Rect mcus, Rect* covered, Scratch& scratch) {
    int interval = jpeg.restart, row = jpeg.mcu_columns;
    if (row % interval && interval % row) return {nullptr, 0};
    int wide = std::min(interval, row), high = std::max(1, interval / row), across = row / wide;
    Rect tiles{mcus.top / high, mcus.left / wide, (mcus.bottom + high - 1) / high, (mcus.right + wide - 1) / wide};
    int rows = (jpeg.mcu_rows + high - 1) / high;
    size_t needed = size_t(tiles.bottom - 1) * across + tiles.right;  // number of intervals up to the last one needed
    std::vector<size_t> starts{jpeg.scan};                            // where each interval begins, after its marker
    const uint8_t *place = file.data + jpeg.scan, *end = file.data + file.size;
    while (starts.size() <= needed) {
        place = static_cast<const uint8_t*>(std::memchr(place, 0xFF, size_t(end - place)));
        if (!place || place + 1 >= end) throw Fault("the JPEG ends early");
        int marker = place[1];
        if (marker >= 0xD0 && marker <= 0xD7) {
            if (marker != 0xD0 + int(starts.size() - 1) % 8) throw Fault("the JPEG is damaged: a restart marker is missing");
        } else if (marker == 0 || marker == 0xFF) {
            place += marker == 0 ? 2 : 1;
            continue;
        } else if (starts.size() != size_t(rows) * across) {
            throw Fault("the JPEG ends early");
        }
        starts.push_back(size_t(place - file.data) + 2);
        place += 2;
    }
    *covered = {tiles.top * high, tiles.left * wide, std::min(tiles.bottom * high, jpeg.mcu_rows), tiles.right * wide};
    size_t room = header_room(jpeg) + 16;
    for (int y = tiles.top; y < tiles.bottom; ++y)
        room += starts[size_t(y) * across + tiles.right] - starts[size_t(y) * across + tiles.left];
    uint8_t* begin = scratch.get(room);
    uint8_t* out = put_header(begin, jpeg, cut_size(jpeg, *covered), interval, jpeg.dc);
    int number = 0;
    for (int y = tiles.top; y < tiles.bottom; ++y)
        for (int x = tiles.left; x < tiles.right; ++x) {
            size_t from = starts[size_t(y) * across + x], to = starts[size_t(y) * across + x + 1];
            out = put_bytes(out, file.data + from, to - from);  // including the marker after it
            out[-1] = uint8_t(0xD0 + number++ % 8);
        }
    out[-1] = 0xD9;
    return {begin, size_t(out - begin)};
}

// Adds the missing codes to a DC table, so that it can encode any DC value (sizes 0 to 11). Returns false if there is
// no room for them.
bool extend(HuffmanSpec& spec) {
    bool there[12] = {};
    int total = spec.total(), code = 0;
    for (int length = 1; length <= 16; ++length) code = (code + spec.counts[length]) << (length < 16);
    for (int k = 0; k < total; ++k)
        if (spec.symbols[k] < 12) there[spec.symbols[k]] = true;
    for (int size = 0; size < 12; ++size) {
        if (there[size]) continue;
        if (++code > 0xFFFF || total > 255 || spec.counts[16] == 255) return false;
        ++spec.counts[16];
        spec.symbols[total++] = uint8_t(size);
    }
    return true;
}

void put_dc(BitWriter& writer, const HuffmanCodes& codes, int value) {
    int size = 0;
    for (int rest = value < 0 ? -value : value; rest; rest >>= 1) ++size;
    if (size > 11) throw Fault("the JPEG is damaged: brightness out of range");
    writer.put(codes.code[size], codes.length[size]);
    if (size) writer.put(uint32_t(value < 0 ? value + (1 << size) - 1 : value), size);
}

// Copies one row of MCUs, unstuffed. `before`: the DC values of the blocks that were written last.
void copy_run(const uint8_t* clean, size_t size, const IndexPoint& point, size_t end_bit, const ScanTables& tables,
              const HuffmanCodes* const codes[3], const int16_t before[3], BitWriter& writer) {
    BitReader bits(clean, size, point.bit);
    for (int c = 0; c < tables.components; ++c)
        for (int block = 0; block < tables.blocks[c]; ++block) {
            size_t begin = bits.position();
            int value = bits.dc(*tables.dc[c]);
            size_t middle = bits.position();
            bits.skip_ac(*tables.ac[c]);
            if (bits.position() > end_bit) throw Fault("the index belongs to another JPEG");
            if (block == 0)
                put_dc(writer, *codes[c], point.dc[c] + value - before[c]);
            else
                writer.copy(clean, begin, middle);
            writer.copy(clean, middle, bits.position());
        }
    writer.copy(clean, bits.position(), end_bit);
}

uint8_t* stuff(const uint8_t* clean, size_t size, uint8_t* out) {
    const uint8_t *place = clean, *end = clean + size;
    while (place < end) {
        const uint8_t* found = static_cast<const uint8_t*>(std::memchr(place, 0xFF, size_t(end - place)));
        size_t length = size_t((found ? found + 1 : end) - place);
        out = put_bytes(out, place, length);
        if (found) *out++ = 0;
        place += length;
    }
    return out;
}

Bytes cut_index(Bytes file, const Jpeg& jpeg, Rect mcus, Bytes index, Rect* covered, Scratch& scratch) {
    static thread_local Scratch clean_memory, run_memory;
    IndexHeader header;
    if (index.size < sizeof header) return {nullptr, 0};
    std::memcpy(&header, index.data, sizeof header);
    int columns = (jpeg.mcu_columns + kIndexStep - 1) / kIndexStep;
    size_t points = size_t(jpeg.mcu_rows) * columns + 1;
    if (header.magic != kIndexMagic || header.file_bytes != file.size || header.rows != jpeg.mcu_rows ||
        header.columns != columns || index.size != sizeof header + points * sizeof(IndexPoint) || header.check != spread_hash(file))
        return {nullptr, 0};  // the index belongs to another file, or to an older version of this one
    auto point = [&](int row, int column) {  // the point after a row's last one is the first of the next row
        IndexPoint found;
        std::memcpy(&found, index.data + sizeof header + (size_t(row) * columns + column) * sizeof found, sizeof found);
        return found;
    };
    HuffmanSpec dc[4];
    HuffmanCodes codes[4];
    const HuffmanCodes* component_codes[3] = {nullptr, nullptr, nullptr};
    for (int c = 0; c < jpeg.components; ++c) {
        int slot = jpeg.component[c].dc;
        dc[slot] = jpeg.dc[slot];
        if (!extend(dc[slot])) return {nullptr, 0};
        codes[slot] = huffman_codes(dc[slot]);
        component_codes[c] = &codes[slot];
    }
    int left = mcus.left / kIndexStep, right = (mcus.right + kIndexStep - 1) / kIndexStep;
    *covered = {mcus.top, left * kIndexStep, mcus.bottom, std::min(right * kIndexStep, jpeg.mcu_columns)};
    Bytes raw{file.data + jpeg.scan, file.size - jpeg.scan};
    size_t room = header_room(jpeg) + 16;
    for (int row = mcus.top; row < mcus.bottom; ++row) {
        IndexPoint first = point(row, left), last = point(row, right);
        if (first.byte > last.byte || last.byte > raw.size || first.bit > 7 || last.bit > 7)
            throw Fault("the index belongs to another JPEG");
        room += 2 * (size_t(last.byte - first.byte) + 64);
    }
    uint8_t* begin = scratch.get(room);
    uint8_t* out = put_header(begin, jpeg, cut_size(jpeg, *covered), 0, dc);
    ScanTables tables(jpeg);
    uint8_t* fresh = run_memory.get(room);
    BitWriter writer(fresh);
    int16_t before[3] = {0, 0, 0};
    for (int row = mcus.top; row < mcus.bottom; ++row) {
        IndexPoint first = point(row, left), last = point(row, right);
        size_t stop = std::min<size_t>(size_t(last.byte) + 1, raw.size);
        Bytes run{raw.data + first.byte, stop - first.byte};
        uint8_t* clean = clean_memory.get(run.size + kPadding);
        size_t size = unstuff(run, clean, nullptr), beyond = stop - last.byte;
        if (size < beyond) throw Fault("the index belongs to another JPEG");
        size_t end_bit = (size - beyond) * 8 + last.bit;
        if (end_bit > size * 8) throw Fault("the index belongs to another JPEG");
        copy_run(clean, size, first, end_bit, tables, component_codes, before, writer);
        std::copy(last.dc, last.dc + 3, before);
    }
    out = stuff(fresh, size_t(writer.finish() - fresh), out);
    *out++ = 0xFF;
    *out++ = 0xD9;
    return {begin, size_t(out - begin)};
}

}  // namespace

Bytes jpeg_cut(Bytes file, const Jpeg& jpeg, Rect mcus, Bytes index, Rect* covered, Scratch& scratch) {
    if (!jpeg.simple()) return {nullptr, 0};
    if (jpeg.restart) return cut_restarts(file, jpeg, mcus, covered, scratch);
    if (!index.size) return {nullptr, 0};
    return cut_index(file, jpeg, mcus, index, covered, scratch);
}

}  // namespace segtrain
