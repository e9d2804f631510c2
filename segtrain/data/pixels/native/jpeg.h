// What do the JPEG files of this folder share? A parsed header, and bits of entropy-coded data. (ITU-T T.81)
#pragma once

#include <cstring>
#include <vector>

#include "core.h"

namespace segtrain {

struct HuffmanSpec {  // DHT: codes of each length, and the symbols in the order of their codes
    bool present = false;
    uint8_t counts[17] = {0};
    uint8_t symbols[256] = {0};
    int total() const;
};

struct JpegComponent {
    int id, h, v, quantization, dc, ac;
};

// The markers of a file up to its first scan.
struct Jpeg {
    int frame = 0;  // SOFn: 0xC0 baseline, 0xC1 extended, 0xC2 progressive, ...
    int precision = 0, restart = 0, components = 0, scan_components = 0;
    Size size{0, 0};
    JpegComponent component[4];
    HuffmanSpec dc[4], ac[4];
    size_t scan = 0;  // byte offset of the first entropy-coded byte
    std::vector<Bytes> kept;  // segments with their markers that decide how pixels come out: APP0, APP14, DQT
    int mcu_height = 8, mcu_width = 8, mcu_rows = 0, mcu_columns = 0;

    // Sequential Huffman, one scan that holds all of 1 or 3 components: what can be cut.
    bool simple() const;
};

Jpeg parse_jpeg(Bytes file);

// Places in the entropy-coded data of a plain file from which decoding can begin: every kIndexStep MCUs of a row, and each row's
// start. Host byte order; kept in caches, never sent to other machines.
constexpr int kIndexStep = 4;
struct IndexHeader {
    uint32_t magic, file_bytes;
    int32_t rows, columns;  // points: rows x columns, and one more for the end
    uint64_t check;         // of some words of the file
};
struct IndexPoint {
    uint32_t byte;  // from Jpeg::scan
    int16_t dc[3];  // predictors
    uint8_t bit;    // of that byte, 0 the highest
    uint8_t unused;
};
constexpr uint32_t kIndexMagic = 0x324A5453;  // "STJ2"; another form of index: another magic, also that of jpeg_tiles.py

// jpeg_scan.cpp: reads through all entropy-coded data without making a coefficient. Faults on damage.
std::vector<uint8_t> jpeg_index(Bytes file);
// The codes of a table's symbols; used to write DC values.
struct HuffmanCodes {
    uint16_t code[256];
    uint8_t length[256];  // 0: no code
};

// jpeg_cut.cpp: a small JPEG that holds the MCUs [top, bottom) x [left, right) and more (its place is written to `covered`), or
// nothing where the file cannot be cut.
Bytes jpeg_cut(Bytes file, const Jpeg& jpeg, Rect mcus, Bytes index, Rect* covered, Scratch& scratch);

}  // namespace segtrain
