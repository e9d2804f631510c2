// An entropy decoder that libjpeg calls instead of its own, which is slower.
#pragma once

#include <csetjmp>
#include <cstdio>

#include <jpeglib.h>

#include "jpeg_bits.h"

namespace segtrain {

// The entropy-coded data of a sequential file, made ready before libjpeg begins. It reads several bits at a time from data without
// stuffing, with the value of most coefficients out of one table: twice as fast as libjpeg's own, with the same coefficients.
class Entropy {
  public:
    Entropy(Bytes file, const Jpeg& jpeg);
    // After jpeg_start_decompress: libjpeg asks this for each MCU. It must live until the last row was read.
    void attach(j_decompress_ptr info);
    // Whether libjpeg's private structure looks as `attach` expects. After jpeg_start_decompress.
    static bool layout_known(j_decompress_ptr info);
    // After the last row of a picture: whether the data ended as it should.
    bool ended_well() const;

  private:
    static boolean decode_mcu(j_decompress_ptr info, JBLOCKROW* blocks);
    bool next(j_decompress_ptr info, JBLOCKROW* blocks);

    struct Interval {
        size_t begin, size;
    };
    ScanTables tables_;
    std::vector<Interval> intervals_;
    const uint8_t* clean_;
    BitReader bits_;
    size_t interval_ = 0;
    long per_interval_, left_ = 0, mcus_;
    int dc_[4] = {0, 0, 0, 0};
    bool whole_;  // an end marker was there
};

}  // namespace segtrain
