// Mapping of the raw ids of a mask to train ids, at the columns of a crop, and the check that they are known.
#include <algorithm>
#include <cstring>

#include "core.h"
#include "warp_rows.h"

#ifdef ST_X86
#include <immintrin.h>
#endif

namespace segtrain {

void Ids::prepare(const uint8_t lut[256], const uint8_t known[256], const std::vector<int>& columns, int row_bytes) {
    lut_ = lut;
    known_ = known;
    columns_ = &columns;
    for (int id = 0; id < 256; ++id) table_[id] = uint16_t(lut[id] | (known[id] ? 0 : 256));
    in_pairs_ = use_avx2() && (prepare_pairs(row_bytes, 16) || prepare_pairs(row_bytes, 8));
}

bool Ids::prepare_pairs(int row_bytes, int each) {
    const std::vector<int>& columns = *columns_;
    int count = int(columns.size()), groups = (count + each - 1) / each;
    if (row_bytes < 16) return false;
    each_ = each;
    pairs_.resize(size_t(groups + 1) / 2);
    for (int g = 0; g < int(pairs_.size()) * 2; ++g) {
        Pair& pair = pairs_[size_t(g) / 2];
        int begin = std::min(g, groups - 1) * each, end = std::min(begin + each, count), half = g & 1;
        int base = std::min(std::min(columns[begin], columns[end - 1]), row_bytes - 16);
        if (std::max(columns[begin], columns[end - 1]) - base >= 16) return false;
        for (int k = 0; k < 16; ++k) pair.pick[16 * half + k] = uint8_t(columns[std::min(begin + k, end - 1)] - base);
        pair.base[half] = base;
    }
    line_.resize(pairs_.size() * 2 * size_t(each) + 16);
    blocks_.clear();
    for (int number = 0; number < 16; ++number) {
        IdBlock block;
        bool any = false;
        for (int k = 0; k < 32; ++k) {
            int id = 16 * number + k % 16;
            block.lut[k] = lut_[id];
            block.known[k] = known_[id] ? 255 : 0;
            block.number[k] = uint8_t(16 * number);
            any |= known_[id] != 0;
        }
        if (any) blocks_.push_back(block);
    }
    return true;
}

#ifdef ST_X86
__attribute__((target("avx2"))) static inline __m256i load(const uint8_t* from) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}

__attribute__((target("avx2"))) bool Ids::map_pairs(const uint8_t* row, uint8_t* out) {
    const __m256i bias = _mm256_set1_epi8(0x70);
    __m256i all = _mm256_set1_epi8(-1);
    uint8_t* line = line_.data();
    for (const Pair& pair : pairs_) {
        __m256i raw = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + pair.base[0]))),
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + pair.base[1])), 1);
        raw = _mm256_shuffle_epi8(raw, load(pair.pick));
        __m256i id = _mm256_setzero_si256(), known = id;
        for (const IdBlock& block : blocks_) {
            // If the id is not one of these 16, `place` has its top bit set. The shuffle then gives 0.
            __m256i place = _mm256_adds_epu8(_mm256_xor_si256(raw, load(block.number)), bias);
            id = _mm256_or_si256(id, _mm256_shuffle_epi8(load(block.lut), place));
            known = _mm256_or_si256(known, _mm256_shuffle_epi8(load(block.known), place));
        }
        all = _mm256_and_si256(all, known);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(line), _mm256_castsi256_si128(id));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(line + each_), _mm256_extracti128_si256(id, 1));
        line += 2 * each_;
    }
    // An unknown id has a train id too, but these tables may leave it out.
    if (_mm256_movemask_epi8(all) != -1) return map_plain(row, out);
    std::memcpy(out, line_.data(), columns_->size());
    return true;
}

#else
bool Ids::map_pairs(const uint8_t*, uint8_t*) { return false; }
#endif

bool Ids::map_plain(const uint8_t* row, uint8_t* out) const {
    unsigned seen = 0;
    const int* columns = columns_->data();
    for (size_t k = 0; k < columns_->size(); ++k) {
        unsigned id = table_[row[columns[k]]];
        seen |= id;
        out[k] = uint8_t(id);
    }
    return !(seen & 256);
}

bool Ids::map(const uint8_t* row, uint8_t* out) { return in_pairs_ ? map_pairs(row, out) : map_plain(row, out); }

}  // namespace segtrain
