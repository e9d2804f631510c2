// What does the part that calls libjpeg offer beside jpeg_region?
#pragma once

#include "core.h"

namespace segtrain {

// The same coefficients with a restart marker about every `interval_pixels` of a row: memory to be given to free().
uint8_t* jpeg_with_restarts(Bytes file, int interval_pixels, size_t* size);

}  // namespace segtrain
