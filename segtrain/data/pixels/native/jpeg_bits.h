// Readers and writers of the Huffman codes of a JPEG. (ITU-T T.81)
#pragma once

#include <algorithm>

#include "jpeg.h"

namespace segtrain {

constexpr int kSeveralBits = 12;   // bits that index HuffmanLookup::several
constexpr size_t kPadding = 16;    // bytes after the data that the reader may read

struct HuffmanLookup {
    uint16_t single[1 << 16];  // next 16 bits -> code length << 8 | symbol; 0: no code
    // As many symbols of AC coefficients as fit into the next bits: number of bits | number of coefficients << 8 | block ended << 16. If
    // the number of bits is 0, use `single`.
    uint32_t several[1 << kSeveralBits];
    explicit HuffmanLookup(const HuffmanSpec& spec);
};

struct ScanTables {
    std::shared_ptr<const HuffmanLookup> dc[4], ac[4];
    int blocks[4], components;
    explicit ScanTables(const Jpeg& jpeg);
};

// FNV-1a hash (64 bits) of 64 words of 8 bytes that are spread evenly over a file. It detects another file of the same
// length without reading all of it.
uint64_t spread_hash(Bytes file);

HuffmanCodes huffman_codes(const HuffmanSpec& spec);

// Writes the entropy-coded bytes up to the first marker, without the stuffed zeros after 0xFF, and returns their
// number. `out` has room for raw.size + kPadding bytes. `removed`, if it is not null, gets the offsets in `out` before
// which a zero was removed.
size_t unstuff(Bytes raw, uint8_t* out, std::vector<uint32_t>* removed);

// Reads unstuffed data. It reads no byte beyond size + kPadding. After the end it returns ones, and past_end() is true.
class BitReader {
  public:
    BitReader(const uint8_t* data, size_t size, size_t bit = 0) : data_(data), size_(size), byte_(bit / 8) {
        if (byte_ > size_) byte_ = size_;
        refill();
        drop(int(bit % 8));
    }
    size_t position() const { return byte_ * 8 - size_t(count_); }
    bool past_end() const { return position() > size_ * 8; }

    // Reads the difference between a DC coefficient and its predictor.
    int dc(const HuffmanLookup& table) {
        refill();
        uint16_t entry = table.single[window_ >> 48];
        int length = entry >> 8, size = entry & 255;
        if (!length || size > 11) throw Fault("the JPEG is damaged: bad Huffman code");
        drop(length);
        return size ? value(size) : 0;
    }

    void skip_ac(const HuffmanLookup& table) {
        int rest = 63;
        while (rest > 0) {
            refill();
            uint32_t entry = table.several[window_ >> (64 - kSeveralBits)];
            int advance = int(entry >> 8 & 255), ended = int(entry >> 16);
            if ((entry & 255) && advance + ended <= rest) {
                drop(int(entry & 255));
                if (ended) return;
                rest -= advance;
                continue;
            }
            uint16_t one = table.single[window_ >> 48];  // the code is long, or the block ends within these symbols
            int length = one >> 8, run = (one & 255) >> 4, size = one & 15;
            if (!length) throw Fault("the JPEG is damaged: bad Huffman code");
            drop(length + size);
            if (size == 0 && run < 15) return;
            rest -= run + 1;
        }
        if (rest) throw Fault("the JPEG is damaged: a block of more than 64 coefficients");
    }

  private:
    // The next `size` bits (1 to 16) as a signed value: EXTEND of T.81 F.2.2.1.
    int value(int size) {
        int bits = int(window_ >> (64 - size));
        drop(size);
        return bits < 1 << (size - 1) ? bits - (1 << size) + 1 : bits;
    }
    void drop(int bits) {
        window_ <<= bits;
        count_ -= bits;
    }
    // Afterwards the window has at least 32 bits.
    void refill() {
        if (count_ >= 32) return;
        uint32_t next = 0xFFFFFFFF;
        if (byte_ <= size_) {  // kPadding bytes after the data may be read
            std::memcpy(&next, data_ + byte_, 4);
            next = __builtin_bswap32(next);
        }
        window_ |= uint64_t(next) << (32 - count_);
        count_ += 32;
        byte_ += 4;
    }
    const uint8_t* data_;
    size_t size_, byte_;
    uint64_t window_ = 0;  // the next bits, the first one highest
    int count_ = 0;        // the number of bits in the window
};

// Writes bits to memory of the caller, which has room for 8 bytes more than are written.
class BitWriter {
  public:
    explicit BitWriter(uint8_t* out) : out_(out) {}
    void put(uint32_t bits, int count) {  // count <= 32
        window_ = window_ << count | bits;
        filled_ += count;
        while (filled_ >= 8) {
            filled_ -= 8;
            *out_++ = uint8_t(window_ >> filled_);
        }
    }
    // Writes the bits [from, to) of `data`, which kPadding bytes follow.
    void copy(const uint8_t* data, size_t from, size_t to) {
        while (from < to && from % 8) {  // up to the next whole byte of the source
            int count = int(std::min<size_t>(8 - from % 8, to - from));
            put(data[from / 8] >> (8 - from % 8 - count) & ((1u << count) - 1), count);
            from += size_t(count);
        }
        const uint8_t* source = data + from / 8;
        size_t words = (to - from) / 64;
        uint64_t pending = filled_ ? window_ << (64 - filled_) : 0;
        for (size_t k = 0; k < words; ++k, source += 8, out_ += 8) {
            uint64_t word;
            std::memcpy(&word, source, 8);
            word = __builtin_bswap64(word);
            uint64_t ready = __builtin_bswap64(pending | word >> filled_);
            std::memcpy(out_, &ready, 8);
            pending = filled_ ? word << (64 - filled_) : 0;
            window_ = word;  // its lowest `filled_` bits are not written yet
        }
        from += words * 64;
        for (; from < to; ++source) {
            int count = int(std::min<size_t>(8, to - from));
            put(uint32_t(*source >> (8 - count)), count);
            from += size_t(count);
        }
    }
    // Fills the last byte with ones (T.81 F.1.2.3), and returns the end of the data.
    uint8_t* finish() {
        if (filled_) put((1u << (8 - filled_)) - 1, 8 - filled_);
        return out_;
    }

  private:
    uint8_t* out_;
    uint64_t window_ = 0;
    int filled_ = 0;  // the window's lowest bits that are not written yet; less than 8 between calls
};

}  // namespace segtrain
