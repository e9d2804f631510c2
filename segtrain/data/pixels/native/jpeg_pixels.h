// Functions of the part that calls libjpeg, besides jpeg_region.
#pragma once

#include "core.h"

namespace segtrain {

// The same coefficients with a restart marker about every `interval_pixels` of a row: memory to be given to free().
uint8_t* jpeg_with_restarts(Bytes file, int interval_pixels, size_t* size);

// Empty if the faster entropy decoder works with the loaded libjpeg; else the reason why libjpeg's own decoder is used instead.
const char* jpeg_entropy_fault();

}  // namespace segtrain
