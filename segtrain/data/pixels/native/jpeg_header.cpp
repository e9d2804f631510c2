// The parser of JPEG headers. (ITU-T T.81)
#include <algorithm>

#include "jpeg.h"

namespace segtrain {

int HuffmanSpec::total() const {
    int sum = 0;
    for (int length = 1; length <= 16; ++length) sum += counts[length];
    return sum;
}

namespace {

// Reads the fields of a header, and throws Fault at the end of the file.
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
        if (slot > 3 || (what >> 4) > 1) throw Fault("the JPEG has a Huffman table of unknown kind");
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
    // T.81 A.2.2: with one component, an MCU is one block.
    if (jpeg.components == 1) jpeg.component[0].h = jpeg.component[0].v = most_h = most_v = 1;
    jpeg.mcu_width = 8 * most_h;
    jpeg.mcu_height = 8 * most_v;
    jpeg.mcu_columns = (jpeg.size.width + jpeg.mcu_width - 1) / jpeg.mcu_width;
    jpeg.mcu_rows = (jpeg.size.height + jpeg.mcu_height - 1) / jpeg.mcu_height;
}

void read_scan(Reader& reader, Jpeg& jpeg) {
    jpeg.scan_components = reader.byte();
    if (jpeg.scan_components < 1 || jpeg.scan_components > 4) throw Fault("the JPEG has a scan with a wrong number of components");
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
    if (file.size < 4 || file.data[0] != 0xFF || file.data[1] != 0xD8) throw Fault("not a JPEG");
    for (;;) {
        if (reader.byte() != 0xFF) throw Fault("the JPEG header is damaged: a marker is missing");
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

}  // namespace segtrain
