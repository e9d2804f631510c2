// Fuzz target of the functions that Python calls. The first 24 bytes of an input choose the geometry and the options,
// and the rest is the file, which is both image and mask.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../../segtrain/data/pixels/native/jpeg.h"
#include "../../segtrain/data/pixels/native/sample.h"

using namespace segtrain;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    constexpr size_t kChoices = 24;
    if (size < kChoices) return 0;
    // A copy of exactly its size, so that the sanitizer finds a read beyond it.
    std::vector<uint8_t> file(data + kChoices, data + size);
    auto number = [&](int place, int modulus) { return int(data[place] | data[place + 1] << 8) % modulus; };
    char message[kMessage] = "";
    StStored stored{};
    stored.data = file.data();
    stored.size = int64_t(file.size());
    stored.kind = file.size() > 1 && file[0] == 0xFF ? kJpeg : kPng;
    int32_t found[2];
    if (st_size(&stored, found, message) || int64_t(found[0]) * found[1] > 1 << 18) return 0;
    uint8_t* index = nullptr;
    int64_t index_size = 0;
    st_check(&stored, data[0] & 1 ? 3 : 1, &index, &index_size, message);

    StRequest request{};
    request.image = request.mask = stored;
    std::vector<uint8_t> pixels(size_t(found[0]) * size_t(found[1]), 7);
    if (stored.kind == kJpeg) request.mask = {pixels.data(), int64_t(pixels.size()), found[1], kPixels, found[0], found[1], 0};
    std::memcpy(request.size, found, sizeof found);
    request.scaled[0] = 1 + number(2, 600);
    request.scaled[1] = 1 + number(4, 600);
    request.crop[0] = 1 + number(6, 200);
    request.crop[1] = 1 + number(8, 200);
    request.top = number(10, 800) - 400;
    request.left = number(12, 800) - 400;
    request.flip = data[14] & 1;
    for (int k = 0; k < 4; ++k) request.colors[k] = data[14] & 2 ? float(data[15 + k]) / 64 : float(k < 3);
    request.fill[3] = 255;
    uint8_t lut[256], known[256];
    for (int id = 0; id < 256; ++id) {
        lut[id] = uint8_t(255 - id);
        known[id] = uint8_t(id != data[19]);
    }
    request.lut = lut;
    request.known = known;
    if (data[0] & 2 && index) {
        // Damage one byte, as a faulty disk would.
        if (data[0] & 4) index[size_t(number(20, 1 << 16)) % size_t(index_size)] ^= data[22];
        request.index = index;
        request.index_size = index_size;
    }
    std::vector<uint8_t> image(size_t(request.crop[0]) * size_t(request.crop[1]) * 3), mask(image.size() / 3);
    request.out_image = image.data();
    request.out_mask = mask.data();
    st_crop_floats(&request, nullptr, message);
    st_free(index);
    return 0;
}
