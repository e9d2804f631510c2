// Fuzz target of the JPEG decoder. The first 8 bytes of an input choose what is done, and the rest is the file.
#include <cstdlib>

#include "../../segtrain/data/pixels/native/jpeg.h"

using namespace segtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    constexpr size_t kChoices = 8;
    if (size < kChoices) return 0;
    Bytes file{data + kChoices, size - kChoices};
    static Scratch scratch;
    try {
        Size whole = jpeg_size(file);
        if (int64_t(whole.height) * whole.width > 1 << 20) return 0;  // too slow
        int denom = 1 << (data[0] & 3);
        Size reduced{(whole.height + denom - 1) / denom, (whole.width + denom - 1) / denom};
        Rect need;
        need.top = reduced.height * data[1] / 256;
        need.left = reduced.width * data[2] / 256;
        need.bottom = need.top + 1 + (reduced.height - need.top - 1) * data[3] / 255;
        need.right = need.left + 1 + (reduced.width - need.left - 1) * data[4] / 255;
        std::vector<uint8_t> index;
        if (data[0] & 4) index = jpeg_index(file);
        if ((data[0] & 8) && !index.empty()) {  // damage one byte, as a faulty disk would
            size_t place = sizeof(IndexHeader) + (size_t(data[5]) << 8 | data[6]) % (index.size() - sizeof(IndexHeader));
            index[place] = uint8_t(index[place] ^ data[7]);
        }
        // A copy of exactly its size, so that the sanitizer finds a read beyond it.
        std::vector<uint8_t> exact(file.data, file.data + file.size);
        Bytes copy{exact.data(), exact.size()};
        Picture picture = jpeg_region(copy, need, denom, {index.data(), index.size()}, scratch);
        unsigned sum = 0;
        for (int y = need.top; y < need.bottom; ++y)
            for (int x = need.left * 3; x < need.right * 3; ++x)
                sum += picture.pixels[size_t(y - picture.covers.top) * picture.stride + size_t(x - picture.covers.left * 3)];
        if (sum == 0xFFFFFFFF) std::abort();  // keeps the compiler from removing the reads
    } catch (const Fault&) {
    } catch (const Unsupported&) {
    }
    return 0;
}
