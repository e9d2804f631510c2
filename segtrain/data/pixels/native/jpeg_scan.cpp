// Where in a JPEG does each tile of MCUs begin? Reads the Huffman codes of the whole scan, several symbols at a time, and keeps no
// coefficient: two to three times as fast as the entropy decoding of a full decode.
#include "jpeg_bits.h"

namespace segtrain {

int HuffmanSpec::total() const {
    int sum = 0;
    for (int length = 1; length <= 16; ++length) sum += counts[length];
    return sum;
}

namespace {

// Segment lengths and fields are checked against what is left of the file.
struct Reader {
    Bytes file;
    size_t place;
    int byte() {
        if (place >= file.size) throw Fault("the JPEG header is cut off");
        return file.data[place++];
    }
    int word() {
        int high = byte();
        return high << 8 | byte();
    }
};

void read_tables(Reader& reader, size_t end, Jpeg& jpeg) {
    while (reader.place < end) {
        int what = reader.byte(), slot = what & 15;
        if (slot > 3 || (what >> 4) > 1) throw Fault("the JPEG has a Huffman table of no known kind");
        HuffmanSpec spec;
        spec.present = true;
        for (int length = 1; length <= 16; ++length) spec.counts[length] = uint8_t(reader.byte());
        int total = spec.total();
        if (total > 256) throw Fault("the JPEG has a Huffman table of more than 256 codes");
        for (int k = 0; k < total; ++k) spec.symbols[k] = uint8_t(reader.byte());
        ((what >> 4) ? jpeg.ac : jpeg.dc)[slot] = spec;
    }
}

void read_frame(Reader& reader, int marker, Jpeg& jpeg) {
    if (jpeg.frame) throw Fault("the JPEG has two frames");
    jpeg.frame = marker;
    jpeg.precision = reader.byte();
    jpeg.size.height = reader.word();
    jpeg.size.width = reader.word();
    jpeg.components = reader.byte();
    if (jpeg.size.height < 1 || jpeg.size.width < 1 || int64_t(jpeg.size.height) * jpeg.size.width > kMaxPixels)
        throw Fault("the JPEG header claims " + std::to_string(jpeg.size.height) + " x " + std::to_string(jpeg.size.width) + " pixels");
    if (jpeg.components < 1 || jpeg.components > 4) throw Fault("the JPEG has a wrong number of components");
    int most_h = 1, most_v = 1;
    for (int c = 0; c < jpeg.components; ++c) {
        JpegComponent& component = jpeg.component[c];
        component.id = reader.byte();
        int factors = reader.byte();
        component.h = factors >> 4;
        component.v = factors & 15;
        component.quantization = reader.byte();
        component.dc = component.ac = 0;
        if (component.h < 1 || component.h > 4 || component.v < 1 || component.v > 4)
            throw Fault("the JPEG has a wrong sampling factor");
        most_h = std::max(most_h, component.h);
        most_v = std::max(most_v, component.v);
    }
    if (jpeg.components == 1) jpeg.component[0].h = jpeg.component[0].v = most_h = most_v = 1;  // T.81 A.2.2: one block is an MCU
    jpeg.mcu_width = 8 * most_h;
    jpeg.mcu_height = 8 * most_v;
    jpeg.mcu_columns = (jpeg.size.width + jpeg.mcu_width - 1) / jpeg.mcu_width;
    jpeg.mcu_rows = (jpeg.size.height + jpeg.mcu_height - 1) / jpeg.mcu_height;
}

void read_scan(Reader& reader, Jpeg& jpeg) {
    jpeg.scan_components = reader.byte();
    if (jpeg.scan_components < 1 || jpeg.scan_components > 4) throw Fault("the JPEG has a scan of no component");
    for (int k = 0; k < jpeg.scan_components; ++k) {
        int id = reader.byte(), tables = reader.byte();
        for (int c = 0; c < jpeg.components; ++c)
            if (jpeg.component[c].id == id) {
                jpeg.component[c].dc = tables >> 4 & 3;
                jpeg.component[c].ac = tables & 3;
            }
    }
}

}  // namespace

bool Jpeg::simple() const {
    if ((frame != 0xC0 && frame != 0xC1) || precision != 8 || scan_components != components) return false;
    if (components != 1 && components != 3) return false;
    for (int c = 0; c < components; ++c)
        if (!dc[component[c].dc].present || !ac[component[c].ac].present) return false;
    return true;
}

Jpeg parse_jpeg(Bytes file) {
    Jpeg jpeg;
    Reader reader{file, 2};
    if (file.size < 4 || file.data[0] != 0xFF || file.data[1] != 0xD8) throw Fault("no JPEG");
    for (;;) {
        if (reader.byte() != 0xFF) throw Fault("the JPEG header is damaged: no marker where one must be");
        int marker = reader.byte();
        while (marker == 0xFF) marker = reader.byte();
        size_t begin = reader.place;
        int length = reader.word();
        size_t end = begin + size_t(length);
        if (length < 2 || end > file.size) throw Fault("the JPEG header is cut off");
        if (marker == 0xC4) {
            read_tables(reader, end, jpeg);
        } else if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC8 && marker != 0xCC) {
            read_frame(reader, marker, jpeg);
        } else if (marker == 0xDD) {
            jpeg.restart = reader.word();
        } else if (marker == 0xDA) {
            if (!jpeg.frame) throw Fault("the JPEG has a scan before its frame");
            read_scan(reader, jpeg);
            jpeg.scan = end;
            return jpeg;
        } else if (marker == 0xDB || marker == 0xE0 || marker == 0xEE) {
            jpeg.kept.push_back({file.data + begin - 2, size_t(length) + 2});
        }
        if (reader.place > end) throw Fault("the JPEG header is damaged: a segment is longer than it says");
        reader.place = end;
    }
}

// Code numbers by length, T.81 annex C. Faults where the lengths make no prefix code.
HuffmanCodes huffman_codes(const HuffmanSpec& spec) {
    HuffmanCodes codes;
    std::memset(&codes, 0, sizeof codes);
    int code = 0, k = 0;
    for (int length = 1; length <= 16; ++length, code <<= 1)
        for (int n = 0; n < spec.counts[length]; ++n, ++code, ++k) {
            if (code >= 1 << length) throw Fault("the JPEG has an impossible Huffman table");
            codes.code[spec.symbols[k]] = uint16_t(code);
            codes.length[spec.symbols[k]] = uint8_t(length);
        }
    return codes;
}

HuffmanLookup::HuffmanLookup(const HuffmanSpec& spec) {
    std::memset(single, 0, sizeof single);
    int code = 0, k = 0;
    for (int length = 1; length <= 16; ++length, code <<= 1)
        for (int n = 0; n < spec.counts[length]; ++n, ++code, ++k) {
            if (code >= 1 << length) throw Fault("the JPEG has an impossible Huffman table");
            uint32_t entry = uint32_t(length) << 8 | spec.symbols[k];
            for (int low = 0; low < 1 << (16 - length); ++low) single[code << (16 - length) | low] = uint16_t(entry);
        }
    for (int window = 0; window < 1 << kQuick; ++window) {
        uint16_t entry = single[window << (16 - kQuick)];
        quick[window] = entry >> 8 <= kQuick ? entry : uint16_t(0);
    }
}

AcLookup::AcLookup(const HuffmanSpec& spec) : HuffmanLookup(spec) {
    for (uint32_t window = 0; window < 1u << kWindow; ++window) {
        int bits = 0, advance = 0, ended = 0;
        while (bits < kWindow && advance < 63) {
            uint32_t rest = (window << bits) & ((1u << kWindow) - 1);
            uint16_t entry = single[rest << (16 - kWindow)];
            int length = entry >> 8, run = (entry & 255) >> 4, size = entry & 15;
            if (!length || bits + length > kWindow) break;  // not to be told from these bits
            if (size == 0 && run < 15) {                    // end of block
                bits += length;
                ended = 1;
                break;
            }
            bits += length + size;  // the value itself is skipped, so it may lie beyond the window
            advance += run + 1;
        }
        several[window] = uint32_t(bits) | uint32_t(advance) << 8 | uint32_t(ended) << 16;
    }
    for (int window = 0; window < 1 << kValues; ++window) {
        uint16_t entry = single[window << (16 - kValues)];
        int length = entry >> 8, zeros = (entry & 255) >> 4, size = entry & 15;
        values[window] = 0;
        if (!length || length + size > kValues || (!size && zeros == 15)) continue;
        int bits = size ? window >> (kValues - length - size) & ((1 << size) - 1) : 0;
        int value = size && bits < 1 << (size - 1) ? bits - (1 << size) + 1 : bits;
        values[window] = (length + size) | (size ? zeros : kEnd) << 8 | int32_t(uint32_t(value) << 16);
    }
}

namespace {

// Tables differ rarely within a data set: built once a thread for as long as they stay the same.
struct Lookups {
    HuffmanSpec spec[8];
    std::shared_ptr<const AcLookup> lookup[8];
    int next = 0;
    std::shared_ptr<const AcLookup> of(const HuffmanSpec& wanted) {
        for (int k = 0; k < 8; ++k)
            if (lookup[k] && !std::memcmp(&spec[k], &wanted, sizeof wanted)) return lookup[k];
        std::shared_ptr<const AcLookup> made(new AcLookup(wanted));
        spec[next] = wanted;
        lookup[next] = made;
        next = (next + 1) % 8;
        return made;
    }
};

}  // namespace

ScanTables::ScanTables(const Jpeg& jpeg) {
    static thread_local Lookups lookups;
    for (int c = 0; c < jpeg.components; ++c) {
        const JpegComponent& component = jpeg.component[c];
        dc[c] = lookups.of(jpeg.dc[component.dc]);
        ac[c] = lookups.of(jpeg.ac[component.ac]);
        blocks[c] = component.h * component.v;
    }
    components = jpeg.components;
}

namespace {

template <class Note>
size_t unstuffed(Bytes raw, uint8_t* out, Note note) {
    const uint8_t *place = raw.data, *end = raw.data + raw.size;
    uint8_t* to = out;
    while (place < end) {
        const uint8_t* found = static_cast<const uint8_t*>(std::memchr(place, 0xFF, size_t(end - place)));
        if (!found || found + 1 >= end) found = end;
        size_t length = size_t(found - place);
        std::memcpy(to, place, length);
        to += length;
        if (found == end) break;
        if (found[1] != 0) break;  // a marker ends the data
        *to++ = 0xFF;
        note(uint32_t(to - out));
        place = found + 2;
    }
    std::memset(to, 0xFF, kPadding);  // the bit reader may look ahead
    return size_t(to - out);
}

}  // namespace

size_t unstuff(Bytes raw, uint8_t* out, std::vector<uint32_t>* removed) {
    return unstuffed(raw, out, [removed](uint32_t place) { removed->push_back(place); });
}

size_t unstuff(Bytes raw, uint8_t* out, size_t* removed) {
    *removed = 0;
    return unstuffed(raw, out, [removed](uint32_t) { ++*removed; });
}

uint64_t spread_hash(Bytes file) {
    constexpr size_t kWords = 64;
    uint64_t hash = 14695981039346656037u;
    for (size_t k = 0; k < kWords && file.size >= 8; ++k) {
        uint64_t word;
        std::memcpy(&word, file.data + (file.size - 8) * k / (kWords - 1), 8);
        hash = (hash ^ word) * 1099511628211u;
    }
    return hash;
}

std::vector<uint8_t> jpeg_index(Bytes file) {
    Jpeg jpeg = parse_jpeg(file);
    if (!jpeg.simple()) throw Unsupported("the JPEG is not of one sequential scan");
    if (jpeg.restart) throw Unsupported("the JPEG has restart markers");
    if (file.size >= 1u << 31) throw Unsupported("the JPEG is larger than 2 GiB");
    static thread_local Scratch scratch;
    std::vector<uint32_t> removed;
    Bytes raw{file.data + jpeg.scan, file.size - jpeg.scan};
    uint8_t* clean = scratch.get(raw.size + kPadding);
    size_t size = unstuff(raw, clean, &removed);
    size_t end = size + removed.size();
    while (end + 1 < raw.size && raw.data[end] == 0xFF && raw.data[end + 1] == 0xFF) ++end;  // fill bytes
    if (end + 1 >= raw.size) throw Fault("the JPEG ends early");
    if (raw.data[end + 1] != 0xD9) throw Fault("the JPEG is damaged: a marker amid its data");
    ScanTables tables(jpeg);
    int columns = (jpeg.mcu_columns + kIndexStep - 1) / kIndexStep;
    IndexHeader header{kIndexMagic, uint32_t(file.size), jpeg.mcu_rows, columns, spread_hash(file)};
    std::vector<uint8_t> index(sizeof header + (size_t(jpeg.mcu_rows) * columns + 1) * sizeof(IndexPoint));
    std::memcpy(index.data(), &header, sizeof header);
    uint8_t* out = index.data() + sizeof header;
    BitReader bits(clean, size);
    int dc[3] = {0, 0, 0};
    size_t passed = 0;
    auto mark = [&] {
        size_t bit = bits.position();
        while (passed < removed.size() && removed[passed] <= bit / 8) ++passed;
        IndexPoint point{uint32_t(bit / 8 + passed), {int16_t(dc[0]), int16_t(dc[1]), int16_t(dc[2])}, uint8_t(bit % 8), 0};
        std::memcpy(out, &point, sizeof point);
        out += sizeof point;
    };
    for (int row = 0; row < jpeg.mcu_rows; ++row)
        for (int column = 0; column < jpeg.mcu_columns; ++column) {
            if (column % kIndexStep == 0) mark();
            for (int c = 0; c < tables.components; ++c)
                for (int block = 0; block < tables.blocks[c]; ++block) {
                    dc[c] += bits.dc(*tables.dc[c]);
                    bits.skip_ac(*tables.ac[c]);
                }
            if (dc[0] != int16_t(dc[0]) || dc[1] != int16_t(dc[1]) || dc[2] != int16_t(dc[2]))
                throw Fault("the JPEG is damaged: brightness out of range");
            if (bits.past_end()) throw Fault("the JPEG ends early");
        }
    mark();
    return index;
}

}  // namespace segtrain
