// residual + dropout(x + bias) with the mask drawn where it is needed, and its gradients; fp32 and bf16.
//
// Bytes: x and the residual are read, the sum written; the gradient's pass reads one and writes one. No mask is kept.
// Floor: these bytes. 64 random bits serve four elements: two 64-bit products, which AVX2 has no vectors for, so that they
// take about 1 ns of a core beside the 1 to 2 that moving four elements in fp32 takes.
//
// The mask is trainer/kernels/residual.py's. Sums for the bias go by blocks of rows that the shape alone says, so
// that they depend on no number of threads.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

namespace {

constexpr int64_t rows_of_sum = 64;
constexpr int64_t run = 256;  // elements whose bits are drawn before they are used

struct BFloat16 {
    uint16_t bits;
};

inline float to_float(float value) { return value; }
inline float to_float(BFloat16 value) {
    const uint32_t bits = uint32_t(value.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}
inline void put(float& to, float value) { to = value; }
inline void put(BFloat16& to, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    to.bits = uint16_t(value != value ? (bits >> 16) | 0x40u : rounded);
}

struct Dropout {
    const int64_t* seeds;  // of each sample; null: nothing is dropped
    int64_t positions, first_position;
    int32_t lowest_kept;
    float scale;
};

// What `count` elements (at most `run`) from `column` of a row on are multiplied by.
void draw(float* factors, const Dropout& dropout, int64_t row, int64_t hidden, int64_t column, int64_t count) {
    const uint64_t seed = uint64_t(dropout.seeds[row / dropout.positions]);
    const int64_t position = dropout.first_position + row % dropout.positions;
    const int64_t element = position * hidden + column;
    alignas(64) int16_t levels[run + 8];
    const int64_t inside = element % 4;
    uint64_t state = seed + uint64_t(element / 4) * 0x9E3779B97F4A7C15ull;
    for (int64_t at = 0; at < inside + count; at += 4) {
        state += 0x9E3779B97F4A7C15ull;
        uint64_t bits = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
        bits ^= bits >> 31;
        std::memcpy(levels + at, &bits, sizeof bits);
    }
    const int16_t* const own = levels + inside;
    for (int64_t at = 0; at < count; ++at) factors[at] = own[at] >= dropout.lowest_kept ? dropout.scale : 0.0f;
}

template <typename T>
void forward(T* y, const T* x, const T* bias, const T* residual, int64_t rows, int64_t hidden, const Dropout& dropout) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        alignas(64) float factors[run], added[run], beside[run];
        std::fill_n(factors, run, 1.0f);
        for (int64_t column = 0; column < hidden; column += run) {
            const int64_t count = std::min(run, hidden - column), at = row * hidden + column;
            if (dropout.seeds) draw(factors, dropout, row, hidden, column, count);
            for (int64_t one = 0; one < count; ++one) added[one] = bias ? to_float(bias[column + one]) : 0.0f;
            for (int64_t one = 0; one < count; ++one) beside[one] = residual ? to_float(residual[at + one]) : 0.0f;
            for (int64_t one = 0; one < count; ++one) {
                put(y[at + one], beside[one] + (to_float(x[at + one]) + added[one]) * factors[one]);
            }
        }
    }
}

// of_x may be null: then nothing is dropped, and x's gradient is the sum's.
template <typename T>
int backward(T* of_x, T* of_bias, const T* gradient, int64_t rows, int64_t hidden, const Dropout& dropout) {
    const int64_t blocks = (rows + rows_of_sum - 1) / rows_of_sum;
    std::vector<float> sums;
    try {
        if (of_bias) sums.resize(size_t(blocks * hidden));
    } catch (const std::bad_alloc&) {
        return 1;
    }
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; ++block) {
        alignas(64) float factors[run], values[run];
        std::fill_n(factors, run, 1.0f);
        float* const own = of_bias ? sums.data() + block * hidden : nullptr;
        for (int64_t row = block * rows_of_sum; row < std::min(rows, (block + 1) * rows_of_sum); ++row) {
            for (int64_t column = 0; column < hidden; column += run) {
                const int64_t count = std::min(run, hidden - column), at = row * hidden + column;
                if (dropout.seeds) draw(factors, dropout, row, hidden, column, count);
                for (int64_t one = 0; one < count; ++one) values[one] = to_float(gradient[at + one]) * factors[one];
                for (int64_t one = 0; of_x && one < count; ++one) put(of_x[at + one], values[one]);
                for (int64_t one = 0; own && one < count; ++one) own[column + one] += values[one];
            }
        }
    }
    for (int64_t column = 0; of_bias && column < hidden; ++column) {
        float total = 0.0f;
        for (int64_t block = 0; block < blocks; ++block) total += sums[size_t(block * hidden + column)];
        put(of_bias[column], total);
    }
    return 0;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void residual_f32(float* y, const float* x, const float* bias, const float* residual, const int64_t* seeds,
                  int64_t samples, int64_t positions, int64_t hidden, int64_t first_position, int32_t lowest_kept,
                  float scale) {
    forward(y, x, bias, residual, samples * positions, hidden, {seeds, positions, first_position, lowest_kept, scale});
}

void residual_bf16(BFloat16* y, const BFloat16* x, const BFloat16* bias, const BFloat16* residual, const int64_t* seeds,
                   int64_t samples, int64_t positions, int64_t hidden, int64_t first_position, int32_t lowest_kept,
                   float scale) {
    forward(y, x, bias, residual, samples * positions, hidden, {seeds, positions, first_position, lowest_kept, scale});
}

int residual_backward_f32(const float* gradient, float* of_x, float* of_bias, const int64_t* seeds, int64_t samples,
                          int64_t positions, int64_t hidden, int64_t first_position, int32_t lowest_kept, float scale) {
    return backward(of_x, of_bias, gradient, samples * positions, hidden,
                    {seeds, positions, first_position, lowest_kept, scale});
}

int residual_backward_bf16(const BFloat16* gradient, BFloat16* of_x, BFloat16* of_bias, const int64_t* seeds,
                           int64_t samples, int64_t positions, int64_t hidden, int64_t first_position,
                           int32_t lowest_kept, float scale) {
    return backward(of_x, of_bias, gradient, samples * positions, hidden,
                    {seeds, positions, first_position, lowest_kept, scale});
}

}  // extern "C"
#pragma GCC visibility pop
