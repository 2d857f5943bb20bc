// Sums over rows that come out the same whatever the number of threads: rows fall into blocks by their number alone,
// a block is summed by one thread from its first row on, and the blocks' sums are added from the first block on.
#pragma once

#include <cstdlib>

#include "vectors.h"

namespace row_blocks {

using vectors::lanes;
using vectors::Vector;

// Below this many elements threads cost more than they bring.
constexpr int64_t worth_threads = 1 << 14;

struct Blocks {
    int64_t rows, each, count;

    explicit Blocks(int64_t rows_) : rows(rows_), each((rows_ + 63) / 64), count(each ? (rows_ + each - 1) / each : 0) {}
    int64_t begin(int64_t block) const { return block * each; }
    int64_t end(int64_t block) const { return (block + 1) * each < rows ? (block + 1) * each : rows; }
};

// One row of sums for each block, `width` of them in fp32, from zero. There is none where there is no memory.
class Sums {
   public:
    Sums(const Blocks& blocks, int64_t width)
        : count_(blocks.count), width_(width), stride_((width + lanes - 1) / lanes * lanes) {
        first_ = static_cast<float*>(std::calloc(count_ * stride_ + 1, sizeof(float)));
    }
    ~Sums() { std::free(first_); }
    Sums(const Sums&) = delete;
    Sums& operator=(const Sums&) = delete;

    bool exist() const { return first_ != nullptr; }
    float* of_block(int64_t block) const { return first_ + block * stride_; }

    template <typename Element>
    void add_up(Element* to) const {
        for (int64_t column = 0; column < width_; column += lanes) {
            Vector total{};
            for (int64_t block = 0; block < count_; block++)
                total += vectors::load(of_block(block) + column);
            vectors::store(to + column, total, width_ - column < lanes ? width_ - column : lanes);
        }
    }

   private:
    int64_t count_, width_, stride_;
    float* first_;
};

}  // namespace row_blocks
