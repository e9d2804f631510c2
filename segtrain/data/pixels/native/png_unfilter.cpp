// Fast inverses of the five row filters of PNG. (PNG specification, section 9)
//
// `Up` works on whole rows. In the other filters, each pixel depends on the result for the pixel to the left. So a
// vector holds only one pixel, or one pixel of each of two rows.
#include <cstdlib>
#include <cstring>

#include "png_parts.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define ST_INLINE inline __attribute__((always_inline))

namespace segtrain {

namespace {

enum Filter { kSub = 1, kUp, kAverage, kPaeth };

// A pixel of up to 8 bytes. Each byte is in a lane of 16 bits. GCC and Clang have this type on every processor.
typedef int16_t Pixel __attribute__((vector_size(16)));
typedef uint8_t Packed __attribute__((vector_size(8)));

template <int bytes>
ST_INLINE Pixel load(const uint8_t* from) {  // reads 4 bytes for a pixel of 3, and 8 for one of 6
    constexpr int word = bytes <= 4 ? (bytes == 1 ? 1 : bytes == 2 ? 2 : 4) : 8;
    Packed packed{};
    std::memcpy(&packed, from, word);
    return __builtin_convertvector(packed, Pixel);
}

ST_INLINE Packed packed(Pixel pixel) { return __builtin_convertvector(pixel, Packed); }

template <int bytes>
ST_INLINE void store(uint8_t* to, Pixel pixel) {
    Packed values = packed(pixel);
    std::memcpy(to, &values, bytes);
}

ST_INLINE Pixel absolute(Pixel x) { return x < 0 ? -x : x; }

// A filter's prediction of a pixel from its neighbors: a is left, b is above, c is above left.
template <int filter>
ST_INLINE Pixel predict(Pixel a, Pixel b, Pixel c) {
    if (filter == kSub) return a;
    if (filter == kAverage) return (a + b) >> 1;
    Pixel up = b - c, left = a - c;
    Pixel pa = absolute(up), pb = absolute(left), pc = absolute(up + left);
    return ((pa <= pb) & (pa <= pc)) ? a : pb <= pc ? b : c;
}

ST_INLINE Pixel add(Pixel x, Pixel y) { return (x + y) & 255; }

// Undoes two rows at once, `row` and the one below it, in one vector, for pixels of up to 4 bytes. The lower row is one
// pixel behind, so that the pixels of the upper row that it needs are done.
template <int upper, int lower, int bytes>
ST_INLINE void two_rows(uint8_t* row, const uint8_t* above, size_t stride, size_t size) {
    auto both = [](Pixel top, Pixel bottom) { return Pixel{top[0], top[1], top[2], top[3], bottom[0], bottom[1], bottom[2], bottom[3]}; };
    const Pixel lower_half{0, 0, 0, 0, -1, -1, -1, -1};
    Pixel a{}, c{};
    for (size_t at = 0; at < size + bytes; at += bytes) {
        uint8_t *here = row + at, *below = row + stride + at - bytes;
        bool first = at == 0, last = at == size;
        Pixel b = both(last ? Pixel{} : load<bytes>(above + at), a);
        Pixel x = both(last ? Pixel{} : load<bytes>(here), first ? Pixel{} : load<bytes>(below));
        Pixel expected = predict<upper>(a, b, c);
        if (upper != lower) expected = lower_half ? predict<lower>(a, b, c) : expected;
        a = add(x, expected);
        c = b;
        Packed done = packed(a);
        if (!last) std::memcpy(here, &done, bytes);
        if (!first) std::memcpy(below, reinterpret_cast<const uint8_t*>(&done) + 4, bytes);
    }
}

template <int filter, int bytes>
ST_INLINE void one_row(uint8_t* row, const uint8_t* above, size_t size) {
    Pixel left{}, corner{};
    for (size_t at = 0; at < size; at += bytes) {
        Pixel up = load<bytes>(above + at);
        left = add(load<bytes>(row + at), predict<filter>(left, up, corner));
        corner = up;
        store<bytes>(row + at, left);
    }
}

// Paeth for pixels of 1 byte. The filtered data of masks are mostly zeros, and runs of zeros have a shortcut. If the
// left and the above-left pixel are equal, Paeth predicts the pixel above; then they are equal for the next pixel too.
// If the row above is constant, Paeth predicts the left pixel.
void paeth_bytes(uint8_t* row, const uint8_t* above, size_t size) {
    static const uint8_t zeros[16] = {};
    int a = 0, c = 0;
    for (size_t at = 0; at < size;) {
        if (at + 16 <= size && std::memcmp(row + at, zeros, 16) == 0) {
            bool as_above = a == c;
            if (as_above || std::memcmp(above + at - 1, above + at, 16) == 0) {
                if (as_above) std::memcpy(row + at, above + at, 16);
                else std::memset(row + at, a, 16);
                at += 16;
                a = row[at - 1], c = above[at - 1];
                continue;
            }
        }
        for (size_t end = at + 16 < size ? at + 16 : size; at < end; at++) {
            int b = above[at], pa = std::abs(b - c), pb = std::abs(a - c), pc = std::abs(a + b - 2 * c);
            a = (row[at] + (pa <= pb && pa <= pc ? a : pb <= pc ? b : c)) & 255;
            c = b;
            row[at] = uint8_t(a);
        }
    }
}

ST_CLONES void add_above(uint8_t* __restrict row, const uint8_t* __restrict above, size_t size) {
    for (size_t i = 0; i < size; i++) row[i] = uint8_t(row[i] + above[i]);
}

void sub_bytes(uint8_t* row, size_t size) {
    size_t at = 0;
    uint8_t left = 0;
#if defined(__SSE2__)
    __m128i carry = _mm_setzero_si128();  // 16 copies of the byte to the left
    for (; at + 16 <= size; at += 16) {
        __m128i sum = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + at));
        sum = _mm_add_epi8(sum, _mm_slli_si128(sum, 1));
        sum = _mm_add_epi8(sum, _mm_slli_si128(sum, 2));
        sum = _mm_add_epi8(sum, _mm_slli_si128(sum, 4));
        sum = _mm_add_epi8(sum, _mm_slli_si128(sum, 8));
        __m128i last = _mm_unpackhi_epi8(sum, sum);  // the total of the 16 bytes, in the two highest
        last = _mm_shufflehi_epi16(last, 0xFF);
        last = _mm_unpackhi_epi64(last, last);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(row + at), _mm_add_epi8(sum, carry));
        carry = _mm_add_epi8(carry, last);
    }
    if (at) left = row[at - 1];
#endif
    for (; at < size; at++) row[at] = left = uint8_t(left + row[at]);
}

template <int bytes>
ST_INLINE void unfilter_one(uint8_t* row, const uint8_t* above, size_t size) {
    switch (row[-1]) {
        case kSub: return bytes == 1 ? sub_bytes(row, size) : one_row<kSub, bytes>(row, above, size);
        case kUp: return add_above(row, above, size);
        case kAverage: return one_row<kAverage, bytes>(row, above, size);
        case kPaeth: return bytes == 1 ? paeth_bytes(row, above, size) : one_row<kPaeth, bytes>(row, above, size);
        default: return;
    }
}

// Undoes two rows at once if that is faster, else returns false.
template <int bytes>
ST_INLINE bool unfilter_two(uint8_t* row, const uint8_t* above, size_t stride, size_t size) {
#if defined(__SSE2__)
    if (bytes != 3 && bytes != 4) return false;
    int pair = row[-1] << 4 | row[stride - 1];
    if (pair == (kPaeth << 4 | kPaeth)) return two_rows<kPaeth, kPaeth, bytes>(row, above, stride, size), true;
    if (pair == (kPaeth << 4 | kAverage)) return two_rows<kPaeth, kAverage, bytes>(row, above, stride, size), true;
    if (pair == (kAverage << 4 | kPaeth)) return two_rows<kAverage, kPaeth, bytes>(row, above, stride, size), true;
    if (pair == (kAverage << 4 | kAverage)) return two_rows<kAverage, kAverage, bytes>(row, above, stride, size), true;
#else
    (void)row, (void)above, (void)stride, (void)size;
#endif
    return false;
}

template <int bytes>
ST_INLINE void unfilter_all(uint8_t* rows, size_t stride, int count, size_t size, const uint8_t* zeros) {
    const uint8_t* above = zeros;
    for (int r = 0; r < count; r++) {
        uint8_t* row = rows + size_t(r) * stride + 1;
        if (r + 1 < count && unfilter_two<bytes>(row, above, stride, size)) {
            row += stride;
            r++;
        } else {
            unfilter_one<bytes>(row, above, size);
        }
        above = row;
    }
}

}  // namespace

void unfilter_rows(uint8_t* rows, size_t stride, int count, size_t bytes, int pixel, const uint8_t* zeros) {
    switch (pixel) {
        case 1: return unfilter_all<1>(rows, stride, count, bytes, zeros);
        case 2: return unfilter_all<2>(rows, stride, count, bytes, zeros);
        case 3: return unfilter_all<3>(rows, stride, count, bytes, zeros);
        case 4: return unfilter_all<4>(rows, stride, count, bytes, zeros);
        case 6: return unfilter_all<6>(rows, stride, count, bytes, zeros);
        default: return unfilter_all<8>(rows, stride, count, bytes, zeros);
    }
}

}  // namespace segtrain
