// The functions of jpeg.cpp that core.h does not declare.
#pragma once

#include "core.h"

namespace segtrain {

// A JPEG with the same coefficients and a restart marker about every `interval_pixels` pixels of a row. The caller
// releases the memory with free().
uint8_t* jpeg_with_restarts(Bytes file, int interval_pixels, size_t* size);

// The reason why libjpeg's own entropy decoder is used, or "" if the faster one works with the loaded libjpeg.
const char* jpeg_entropy_fault();

}  // namespace segtrain
