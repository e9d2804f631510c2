// The tables of Huffman codes of a JPEG, and its index: where each tile of MCUs begins.
//
// To make an index, the Huffman codes of the whole scan are read, several symbols at a time, and no coefficient is
// computed. This is two to three times as fast as the entropy decoding of a full decode.
#include "jpeg_bits.h"

namespace segtrain {

// Assigns the codes (T.81 annex C). Throws Fault if there are more codes of a length than a prefix code can have.
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
    for (uint32_t window = 0; window < 1u << kSeveralBits; ++window) {
        int bits = 0, advance = 0, ended = 0;
        while (bits < kSeveralBits && advance < 63) {
            uint32_t rest = (window << bits) & ((1u << kSeveralBits) - 1);
            uint16_t entry = single[rest << (16 - kSeveralBits)];
            int length = entry >> 8, run = (entry & 255) >> 4, size = entry & 15;
            if (!length || bits + length > kSeveralBits) break;  // the code does not end within the window
            if (size == 0 && run < 15) {                    // end of the block
                bits += length;
                ended = 1;
                break;
            }
            bits += length + size;  // the value is not needed, so it may extend beyond the window
            advance += run + 1;
        }
        several[window] = uint32_t(bits) | uint32_t(advance) << 8 | uint32_t(ended) << 16;
    }
}

namespace {

// The last 8 lookup tables of a thread. They are reused, because most files of a data set have the same Huffman tables.
struct Lookups {
    HuffmanSpec spec[8];
    std::shared_ptr<const HuffmanLookup> lookup[8];
    int next = 0;
    std::shared_ptr<const HuffmanLookup> of(const HuffmanSpec& wanted) {
        for (int k = 0; k < 8; ++k)
            if (lookup[k] && !std::memcmp(&spec[k], &wanted, sizeof wanted)) return lookup[k];
        std::shared_ptr<const HuffmanLookup> made(new HuffmanLookup(wanted));
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

size_t unstuff(Bytes raw, uint8_t* out, std::vector<uint32_t>* removed) {
    const uint8_t *place = raw.data, *end = raw.data + raw.size;
    uint8_t* to = out;
    while (place < end) {
        const uint8_t* found = static_cast<const uint8_t*>(std::memchr(place, 0xFF, size_t(end - place)));
        if (!found || found + 1 >= end) found = end;
        size_t length = size_t(found - place);
        std::memcpy(to, place, length);
        to += length;
        if (found == end) break;
        if (found[1] != 0) break;  // a marker: the end of the data
        *to++ = 0xFF;
        if (removed) removed->push_back(uint32_t(to - out));
        place = found + 2;
    }
    std::memset(to, 0xFF, kPadding);  // the bit reader may read ahead
    return size_t(to - out);
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
    if (!jpeg.simple()) throw Unsupported("the JPEG is not sequential, or has several scans");
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
    if (raw.data[end + 1] != 0xD9) throw Fault("the JPEG is damaged: a marker within its data");
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
