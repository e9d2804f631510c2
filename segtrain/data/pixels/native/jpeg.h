// The parsed header of a JPEG (ITU-T T.81), and the index of its entropy-coded data.
#pragma once

#include <cstring>
#include <vector>

#include "core.h"

namespace segtrain {

// A Huffman table, as a DHT segment stores it.
struct HuffmanSpec {
    bool present = false;
    uint8_t counts[17] = {0};    // the number of codes of each length, 1 to 16 bits
    uint8_t symbols[256] = {0};  // in the order of their codes
    int total() const;
};

struct JpegComponent {
    int id, h, v, quantization, dc, ac;  // h, v: sampling factors; the last three are table numbers
};

// The header of a file: what its markers up to the first scan say.
struct Jpeg {
    int frame = 0;  // SOFn: 0xC0 baseline, 0xC1 extended, 0xC2 progressive, ...
    int precision = 0, restart = 0, components = 0, scan_components = 0;  // restart: MCUs per restart interval, or 0
    Size size{0, 0};
    JpegComponent component[4];
    HuffmanSpec dc[4], ac[4];
    size_t scan = 0;  // byte offset of the first entropy-coded byte
    // Segments that change the decoded pixels, with their markers: APP0, APP14, DQT.
    std::vector<Bytes> kept;
    int mcu_height = 8, mcu_width = 8, mcu_rows = 0, mcu_columns = 0;

    // Whether it is a sequential Huffman JPEG whose one scan holds all of its 1 or 3 components. Only such a file can
    // be cut.
    bool simple() const;
};

Jpeg parse_jpeg(Bytes file);

// An index lists the places in the entropy-coded data of a simple file from which decoding can start. There is one at
// the start of each row of MCUs, and after every kIndexStep MCUs of the row. It is in host byte order, because it stays
// in the cache of one machine.
constexpr int kIndexStep = 4;
struct IndexHeader {
    uint32_t magic, file_bytes;
    int32_t rows, columns;  // rows x columns points follow, and one more for the end of the data
    uint64_t check;         // spread_hash of the file
};
struct IndexPoint {
    uint32_t byte;  // offset from Jpeg::scan
    int16_t dc[3];  // DC predictor of each component
    uint8_t bit;    // the first bit in that byte; 0 is the highest
    uint8_t unused;
};
// "STJ2". If you change the format, change this value, and _MAGIC in segtrain/data/pixels/jpeg_tiles.py.
constexpr uint32_t kIndexMagic = 0x324A5453;

// jpeg_scan.cpp: makes the index of a file. It reads all entropy-coded data, but computes no coefficients. Throws Fault
// if the data are damaged.
std::vector<uint8_t> jpeg_index(Bytes file);
// The codes of a table, by symbol, for writing DC values.
struct HuffmanCodes {
    uint16_t code[256];
    uint8_t length[256];  // 0: no code
};

// jpeg_cut.cpp: a small JPEG that contains the MCUs of the rectangle `mcus`, and perhaps more around them. `covered`
// gets its rectangle, in MCUs. Returns no bytes if the file cannot be cut.
Bytes jpeg_cut(Bytes file, const Jpeg& jpeg, Rect mcus, Bytes index, Rect* covered, Scratch& scratch);

}  // namespace segtrain
