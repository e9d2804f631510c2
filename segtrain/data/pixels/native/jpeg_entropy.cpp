// The entropy decoder that takes the place of libjpeg's own.
#include "jpeg_entropy.h"

#include <cstdlib>

#include <jerror.h>

namespace segtrain {

namespace {

// Position in the block of the k-th coefficient, in zigzag order (T.81 figure A.6).
constexpr uint8_t kNatural[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
                                  41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
                                  30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

// The start of libjpeg's private structure jpeg_entropy_decoder. libjpeg calls the second pointer for each MCU. The
// layout has been the same in every version since 6a of 1996. `jpeg_entropy_fault` checks it before the first use.
struct PublicEntropyDecoder {
    void (*start_pass)(j_decompress_ptr);
    boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW*);
};

constexpr uint8_t kNothing[kPadding] = {};  // read before the first interval

uint8_t* scratch_of(size_t bytes) {
    static thread_local Scratch scratch;
    return scratch.get(bytes);
}

}  // namespace

Entropy::Entropy(Bytes file, const Jpeg& jpeg)
    : tables_(jpeg), bits_(kNothing, 0), mcus_(long(jpeg.mcu_rows) * jpeg.mcu_columns), whole_(false) {
    per_interval_ = jpeg.restart ? jpeg.restart : mcus_;
    size_t count = size_t((mcus_ + per_interval_ - 1) / per_interval_);
    const uint8_t *place = file.data + jpeg.scan, *end = file.data + file.size;
    // Each interval gets its own padding. In a damaged file, intervals may be empty, and there may be too few.
    size_t room = size_t(end - place) + std::min(count, size_t(end - place) / 2 + 1) * kPadding;
    uint8_t* out = scratch_of(room);
    clean_ = out;
    while (intervals_.size() < count) {
        size_t removed = 0, size = unstuff({place, size_t(end - place)}, out, &removed);
        intervals_.push_back({size_t(out - clean_), size});
        out += size + kPadding;
        place += size + removed;
        while (place + 1 < end && place[0] == 0xFF && place[1] == 0xFF) ++place;  // fill bytes
        if (place + 1 >= end) break;
        int marker = place[1];
        place += 2;
        if (intervals_.size() == count) whole_ = marker == 0xD9;
        else if (marker != 0xD0 + int((intervals_.size() - 1) % 8)) break;
    }
}

void Entropy::attach(j_decompress_ptr info) {
    info->client_data = this;
    reinterpret_cast<PublicEntropyDecoder*>(info->entropy)->decode_mcu = decode_mcu;
}

bool Entropy::layout_known(j_decompress_ptr info) {
    // Both pointers must be functions of libjpeg: close to another of its functions, as all of its code takes about 1
    // MB.
    const auto* decoder = reinterpret_cast<const PublicEntropyDecoder*>(info->entropy);
    auto place = [](auto* function) { return reinterpret_cast<intptr_t>(function); };
    auto near = [&](intptr_t found) { return std::abs(found - place(&jpeg_std_error)) < (intptr_t(1) << 24); };
    return decoder && near(place(decoder->start_pass)) && near(place(decoder->decode_mcu));
}

bool Entropy::ended_well() const { return whole_; }

boolean Entropy::decode_mcu(j_decompress_ptr info, JBLOCKROW* blocks) {
    // The callers on the stack are C functions of libjpeg. So an error must use libjpeg's longjmp, not an exception.
    if (!static_cast<Entropy*>(info->client_data)->next(info, blocks)) ERREXIT(info, JWRN_HUFF_BAD_CODE);
    return TRUE;
}

bool Entropy::next(j_decompress_ptr info, JBLOCKROW* blocks) {
    if (left_ == 0) {
        if (interval_ == intervals_.size()) return false;
        const Interval& interval = intervals_[interval_++];
        bits_ = BitReader(clean_ + interval.begin, interval.size);
        left_ = per_interval_;
        dc_[0] = dc_[1] = dc_[2] = 0;
    }
    --left_;
    for (int block = 0; block < info->blocks_in_MCU; ++block) {
        int component = info->MCU_membership[block], difference;
        if (!bits_.difference(*tables_.dc[component], &difference)) return false;
        dc_[component] += difference;
        if (blocks) {
            int16_t* out = blocks[block][0];
            out[0] = int16_t(dc_[component]);
            if (!bits_.ac(*tables_.ac[component], out, kNatural)) return false;
        } else if (!bits_.pass_ac(*tables_.ac[component])) {
            return false;
        }
    }
    return !bits_.past_end();
}

}  // namespace segtrain
