// The gradients of LayerNorm and RMSNorm over rows of h elements (normalization.cu).
//
//   g = gradient weight,  u = (x - mean) d:  of_x = d (g - mean(g) - u mean(g u)) + added
//   of_weight = sum over rows of gradient u,  of_bias = sum over rows of gradient
// RMSNorm is the same with a mean of 0 and without mean(g); a null pointer for the means says so. Means and d, the
// reciprocal of the deviation, are fp32. Plain reference: autograd of trainer/kernels/normalization.py, `_by_torch`.
//
// Bytes, with e the size of an element: 3 e r h (with `added` 4 e r h), and 16 h for each block: its part of the
// weights' gradients, written and read again. Floor: those bytes at the chip's copy rate; r 8192, h 4096 in 16 bits:
// 0.20 GB.
//
// A row of h is read by, and kept in         in 16 bits  in fp32
//   warp    a warp; registers                to 1,024    to 512
//   narrow  up to 512 threads; registers     to 4,096    to 2,048   next row read while one is computed
//   block   the same, two vectors a thread   to 8,192    to 4,096   the same
//   wide    the same                         to 16,384   to 8,192
//   tiles   512 threads, which read it twice to 32,768   to 32,768  second time out of the L2 cache
// Blocks go through many rows each. A thread's part of the weights' gradients is in its registers (warp, narrow, block); wide
// and tiles have a block's in shared memory, or where that is too small in its part of `partials`.
// `norm_weight_gradients` adds up all parts: rows and parts in an order that the grid alone says.
#include "rows.cuh"

namespace {

// What the backward pass has of one row besides x and the gradient.
struct Statistics {
    float mean, deviation;
};

template <typename T, bool whole> struct Backward {
    T* of_x;
    const T *gradient, *x, *weight, *added;  // added: null for none
    const float *means, *deviations;
    float* sums;  // this team's part of the weights' gradients: of weight, then of bias if there is one
    int hidden, slots;
    bool aligned, weights_aligned, has_bias;

    __device__ __forceinline__ Statistics statistics(int64_t row) const {
        Statistics found;
        found.mean = means == nullptr ? 0.0f : means[row];
        found.deviation = deviations[row];
        return found;
    }
    __device__ __forceinline__ Part<T> of_row(const T* rows, int64_t start, int first) const {
        return read_part<T, whole>(rows + start, aligned, first, hidden);
    }
    __device__ __forceinline__ Part<T> weights(int first) const {
        return read_part<T, whole>(weight, weights_aligned, first, hidden);
    }

    // Adds sum(g) and sum(g u) of one vector.
    __device__ __forceinline__ void add(float (&two_sums)[2], const Part<T>& gradients, const Part<T>& values,
                                        const Part<T>& by, Statistics of_row) const {
#pragma unroll
        for (int at = 0; at < width<T>; ++at) {
            const float g = gradients[at] * by[at];
            const float unit = (values[at] - of_row.mean) * of_row.deviation;
            two_sums[0] += g;
            two_sums[1] = fmaf(g, unit, two_sums[1]);
        }
    }

    // Writes of_x of one vector. Its part of the weights' gradients: gradients times units, and gradients.
    __device__ __forceinline__ void finish(const float (&two_means)[2], const Part<T>& gradients, const Part<T>& values,
                                           const Part<T>& by, const Part<T>& others, int first, int64_t start,
                                           Statistics of_row, float (&units)[width<T>],
                                           float (&of_bias)[width<T>]) const {
        float part[width<T>];
#pragma unroll
        for (int at = 0; at < width<T>; ++at) {
            of_bias[at] = gradients[at];
            units[at] = (values[at] - of_row.mean) * of_row.deviation;
            const float rest = fmaf(-units[at], two_means[1], of_bias[at] * by[at] - two_means[0]);
            part[at] = fmaf(of_row.deviation, rest, others[at]);
        }
        write_part<T, whole>(part, of_x + start, aligned, first, hidden);
    }

    __device__ __forceinline__ Part<T> others(int64_t start, int first) const {
        return added == nullptr ? Part<T>::zeros() : of_row(added, start, first);
    }

    // Adds to, or puts in the place of, a vector's part of the weights' gradients in memory. Vectors' first four
    // numbers lie side by side, then their next four: neighbouring threads use different banks.
    template <bool is_first>
    __device__ __forceinline__ void accumulate(const float (&values)[width<T>], int from, int first) const {
        const int fours = slots / width<T> * 4;
#pragma unroll
        for (int four = 0; four < width<T> / 4; ++four) {
            float* place = sums + from + four * fours + first / width<T> * 4;
            Vec<float, 4> sum = is_first ? Vec<float, 4>{} : Vec<float, 4>::load(place);
#pragma unroll
            for (int at = 0; at < 4; ++at) sum[at] += values[four * 4 + at];
            sum.store(place);
        }
    }
    template <bool is_first>
    __device__ __forceinline__ void accumulate(const float (&of_weight)[width<T>], const float (&of_bias)[width<T>],
                                               int first) const {
        accumulate<is_first>(of_weight, 0, first);
        if (has_bias) accumulate<is_first>(of_bias, slots, first);
    }
    __device__ __forceinline__ void add_products(const float (&units)[width<T>], const float (&of_bias)[width<T>],
                                                 int first) const {
        float of_weight[width<T>];
#pragma unroll
        for (int at = 0; at < width<T>; ++at) of_weight[at] = of_bias[at] * units[at];
        accumulate<false>(of_weight, of_bias, first);
    }
};

// Which column of the weights' gradients is in a slot.
template <typename T> __device__ __forceinline__ int column_of(int slot, int slots) {
    const int fours = slots / width<T> * 4;
    const int four = slot / fours, rest = slot % fours;
    return rest / 4 * width<T> + four * 4 + rest % 4;
}

template <typename T, typename Team> __device__ __forceinline__ int first_of(int vector) {
    return (Team::thread() + vector * Team::threads()) * width<T>;
}

// A thread's part of a row, for `vectors` vectors a thread.
template <typename T, int vectors> struct Kept {
    Part<T> gradient[vectors], x[vectors];
    Statistics statistics;

    template <typename Team, bool whole>
    __device__ __forceinline__ void read(const Backward<T, whole>& of, int64_t row) {
#pragma unroll
        for (int vector = 0; vector < vectors; ++vector) {
            gradient[vector] = of.of_row(of.gradient, row * of.hidden, first_of<T, Team>(vector));
            x[vector] = of.of_row(of.x, row * of.hidden, first_of<T, Team>(vector));
        }
        statistics = of.statistics(row);
    }
};

// A thread's part of the weights' gradients: in registers, or where those are too few in memory.
template <typename T, int vectors, bool in_registers> struct WeightSums {
    float of_weight[vectors][width<T>] = {}, of_bias[vectors][width<T>] = {};

    template <typename Team, bool whole>
    __device__ __forceinline__ void add(const Backward<T, whole>&, int vector, const float (&units)[width<T>],
                                        const float (&to_bias)[width<T>]) {
#pragma unroll
        for (int at = 0; at < width<T>; ++at) {
            of_weight[vector][at] = fmaf(to_bias[at], units[at], of_weight[vector][at]);
            of_bias[vector][at] += to_bias[at];
        }
    }
    template <typename Team, bool whole> __device__ __forceinline__ void store(const Backward<T, whole>& of) const {
#pragma unroll
        for (int vector = 0; vector < vectors; ++vector) {
            const int first = first_of<T, Team>(vector);
            if (first < of.hidden) of.template accumulate<true>(of_weight[vector], of_bias[vector], first);
        }
    }
};
template <typename T, int vectors> struct WeightSums<T, vectors, false> {
    template <typename Team, bool whole>
    __device__ __forceinline__ void add(const Backward<T, whole>& of, int vector, const float (&units)[width<T>],
                                        const float (&to_bias)[width<T>]) {
        of.add_products(units, to_bias, first_of<T, Team>(vector));
    }
    template <typename Team, bool whole> __device__ __forceinline__ void store(const Backward<T, whole>&) const {}
};

template <typename T, typename Team, int vectors, bool in_registers, bool whole>
__device__ __forceinline__ void backward_row(const Backward<T, whole>& of, const Kept<T, vectors>& kept,
                                             int64_t row, WeightSums<T, vectors, in_registers>& weight_sums) {
    const int64_t start = row * of.hidden;
    Part<T> others[vectors];
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int vector = 0; in_registers && vector < vectors; ++vector) {
        others[vector] = of.others(start, first_of<T, Team>(vector));
    }
#pragma unroll
    for (int vector = 0; vector < vectors; ++vector) {
        const int first = first_of<T, Team>(vector);
        if (first >= of.hidden) continue;
        const Part<T> by = of.weights(first);
        of.add(sums, kept.gradient[vector], kept.x[vector], by, kept.statistics);
    }
    Team::sums(sums);
    const float two_means[2] = {of.means == nullptr ? 0.0f : sums[0] / float(of.hidden), sums[1] / float(of.hidden)};
#pragma unroll
    for (int vector = 0; vector < vectors; ++vector) {
        const int first = first_of<T, Team>(vector);
        if (first >= of.hidden) continue;
        const Part<T> by = of.weights(first);
        const Part<T> other = in_registers ? others[vector] : of.others(start, first);
        float units[width<T>], to_bias[width<T>];
        of.finish(two_means, kept.gradient[vector], kept.x[vector], by, other, first, start, kept.statistics, units,
                  to_bias);
        weight_sums.template add<Team>(of, vector, units, to_bias);
    }
}

template <typename T, bool whole>
__device__ __forceinline__ void backward_row_in_tiles(const Backward<T, whole>& of, int64_t row) {
    const Statistics of_row = of.statistics(row);
    const int64_t start = row * of.hidden;
    const int begin = BlockTeam::thread() * width<T>, step = BlockTeam::threads() * width<T>;
    float sums[2] = {0.0f, 0.0f};
#pragma unroll (whole ? 4 : 1)
    for (int first = begin; first < of.hidden; first += step) {
        of.add(sums, of.of_row(of.gradient, start, first), of.of_row(of.x, start, first), of.weights(first), of_row);
    }
    BlockTeam::sums(sums);
    const float two_means[2] = {of.means == nullptr ? 0.0f : sums[0] / float(of.hidden), sums[1] / float(of.hidden)};
    for (int first = begin; first < of.hidden; first += step) {
        float units[width<T>], to_bias[width<T>];
        of.finish(two_means, of.of_row(of.gradient, start, first), of.of_row(of.x, start, first), of.weights(first),
                  of.others(start, first), first, start, of_row, units, to_bias);
        of.add_products(units, to_bias, first);
    }
}

// All rows of this team, `vectors` vectors a thread (0: in tiles); `ahead`: the next is read while one is computed.
template <typename T, typename Team, int vectors, bool ahead, bool in_registers, bool whole>
__device__ __forceinline__ void backward_rows(const Backward<T, whole>& of, int64_t rows) {
    const int64_t first = team_index<Team>(), step = int64_t(gridDim.x) * Team::teams_in_block();
    if constexpr (vectors == 0) {
        for (int64_t row = first; row < rows; row += step) backward_row_in_tiles<T, whole>(of, row);
    } else {
        WeightSums<T, vectors, in_registers> weight_sums;
        Kept<T, vectors> kept;
        if (ahead && first < rows) kept.template read<Team>(of, first);
        for (int64_t row = first; row < rows; row += step) {
            if constexpr (ahead) {
                Kept<T, vectors> next = kept;
                if (row + step < rows) next.template read<Team>(of, row + step);
                backward_row<T, Team>(of, kept, row, weight_sums);
                kept = next;
            } else {
                kept.template read<Team>(of, row);
                backward_row<T, Team>(of, kept, row, weight_sums);
            }
        }
        weight_sums.template store<Team>(of);
    }
}

// sums_are_shared: the block's, or each of its warps', are in shared memory until it has done all its rows.
template <typename T, typename Team, int vectors, bool ahead, bool in_registers, bool whole>
__device__ __forceinline__ void backward(T* of_x, float* partials, const T* gradient, const T* x, const T* weight,
                                         const T* added, const float* means, const float* deviations, int64_t rows,
                                         int hidden, int has_bias, int aligned, int weights_aligned,
                                         int sums_are_shared) {
    DYNAMIC_SHARED(float, shared_sums);
    Backward<T, whole> of;
    of.slots = (hidden + width<T> - 1) / width<T> * width<T>;
    const int count = of.slots * (has_bias ? 2 : 1);
    float* part = partials + int64_t(blockIdx.x) * count;
    of.of_x = of_x;
    of.gradient = gradient;
    of.x = x;
    of.weight = weight;
    of.added = added;
    of.means = means;
    of.deviations = deviations;
    of.sums = sums_are_shared ? shared_sums + Team::index_in_block() * count : part;
    of.hidden = hidden;
    of.aligned = aligned != 0;
    of.weights_aligned = weights_aligned != 0;
    of.has_bias = has_bias != 0;
    if constexpr (!in_registers) {
        for (int slot = Team::thread(); slot < count; slot += Team::threads()) of.sums[slot] = 0.0f;
        __syncthreads();
    }

    backward_rows<T, Team, vectors, ahead, in_registers, whole>(of, rows);
    if (!sums_are_shared) return;
    __syncthreads();
    for (int slot = int(threadIdx.x); slot < count; slot += int(blockDim.x)) {
        float sum = shared_sums[slot];
        for (int team = 1; team < Team::teams_in_block(); ++team) sum += shared_sums[team * count + slot];
        part[slot] = sum;
    }
}

// Blocks of 256 threads: 8 for each of 32 slots, which add every eighth part; then these eight, always in that order.
template <typename T>
__device__ __forceinline__ void weight_gradients(T* of_weight, T* of_bias, const float* partials, int parts,
                                                 int hidden) {
    SHARED(float, of_eighths, 256);
    const int slots = (hidden + width<T> - 1) / width<T> * width<T>;
    const int count = slots * (of_bias == nullptr ? 1 : 2);
    const int slot = int(blockIdx.x) * warp_size + lane_index();
    float sum = 0.0f;
    if (slot < count) {
#pragma unroll 8
        for (int part = warp_index(); part < parts; part += 8) sum += partials[int64_t(part) * count + slot];
    }
    of_eighths[threadIdx.x] = sum;
    __syncthreads();
    if (warp_index() != 0 || slot >= count) return;
#pragma unroll
    for (int eighth = 1; eighth < 8; ++eighth) sum += of_eighths[eighth * warp_size + lane_index()];
    const int column = column_of<T>(slot % slots, slots);
    if (column < hidden) (slot < slots ? of_weight : of_bias)[column] = from_float<T>(sum);
}

}  // namespace

// In 64 registers a V100's compiler has no room for a next row.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool narrow_reads_ahead = false;
#else
constexpr bool narrow_reads_ahead = true;
#endif

#define BACKWARD(form, suffix, T, Team, vectors, ahead, in_registers, bounds)                                          \
    extern "C" __global__ void __launch_bounds__ bounds norm_backward_##form##_##suffix(                               \
        T* of_x, float* partials, const T* gradient, const T* x, const T* weight, const T* added, const float* means,  \
        const float* deviations, int64_t rows, int hidden, int has_bias, int aligned, int weights_aligned,             \
        int sums_are_shared) {                                                                                         \
        if (aligned && weights_aligned) {                                                                              \
            backward<T, Team, vectors, ahead, in_registers, true>(of_x, partials, gradient, x, weight, added, means,   \
                                                                  deviations, rows, hidden, has_bias, 1, 1,            \
                                                                  sums_are_shared);                                    \
        } else {                                                                                                       \
            backward<T, Team, vectors, false, in_registers, false>(of_x, partials, gradient, x, weight, added, means,  \
                                                                   deviations, rows, hidden, has_bias, aligned,        \
                                                                   weights_aligned, sums_are_shared);                  \
        }                                                                                                              \
    }                                                                                                                  \
    EXPORT(norm_backward_##form##_##suffix)

#define INSTANCES(suffix, T)                                                                                           \
    BACKWARD(warp, suffix, T, WarpTeam, 4, false, true, (128))                                                         \
    BACKWARD(narrow, suffix, T, BlockTeam, 1, narrow_reads_ahead, true, (512, 2))                                      \
    BACKWARD(block, suffix, T, BlockTeam, 2, true, true, (512))                                                        \
    BACKWARD(wide, suffix, T, BlockTeam, 4, false, false, (512))                                                       \
    BACKWARD(tiles, suffix, T, BlockTeam, 0, false, false, (512))                                                      \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        norm_weight_gradients_##suffix(T* of_weight, T* of_bias, const float* partials, int parts, int hidden) {       \
        weight_gradients<T>(of_weight, of_bias, partials, parts, hidden);                                              \
    }                                                                                                                  \
    EXPORT(norm_weight_gradients_##suffix)

INSTANCES(f32, float)
INSTANCES(f16, Half)
INSTANCES(bf16, BFloat16)
