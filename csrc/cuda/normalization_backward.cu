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
//   block   up to 512 threads; registers     to 8,192    to 4,096   next row read while one is computed
//   wide    the same                         to 16,384   to 8,192
//   tiles   512 threads, which read it twice to 32,768   to 32,768  second time out of the L2 cache
// Blocks go through many rows each. A block's part of the weights' gradients is in shared memory, or where that is too
// small in its part of `partials`. `norm_weight_gradients` adds up all parts: rows and parts in an order that the grid
// alone says.
#include "rows.cuh"

namespace {

// What the backward pass has of one row besides x and the gradient.
struct Statistics {
    float mean, deviation;
};

template <typename T> struct Backward {
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

    // Adds sum(g) and sum(g u) of one vector.
    __device__ __forceinline__ void add(float (&two_sums)[2], const Part<T>& gradients, const Part<T>& values,
                                        int first, Statistics of_row) const {
        const Part<T> weights = read_part(weight, weights_aligned, first, hidden);
#pragma unroll
        for (int at = 0; at < width<T>; ++at) {
            const float g = to_float(gradients[at]) * to_float(weights[at]);
            const float unit = (to_float(values[at]) - of_row.mean) * of_row.deviation;
            two_sums[0] += g;
            two_sums[1] = fmaf(g, unit, two_sums[1]);
        }
    }

    // Writes of_x of one vector, and adds its part to the weights' gradients.
    __device__ __forceinline__ void finish(const float (&two_means)[2], const Part<T>& gradients, const Part<T>& values,
                                           int first, int64_t start, Statistics of_row) const {
        const Part<T> weights = read_part(weight, weights_aligned, first, hidden);
        Part<T> part, others;
        if (added != nullptr) others = read_part(added + start, aligned, first, hidden);
        float of_weight[width<T>], of_bias[width<T>];
#pragma unroll
        for (int at = 0; at < width<T>; ++at) {
            of_bias[at] = to_float(gradients[at]);
            const float unit = (to_float(values[at]) - of_row.mean) * of_row.deviation;
            const float rest = of_bias[at] * to_float(weights[at]) - two_means[0] - unit * two_means[1];
            const float other = added != nullptr ? to_float(others[at]) : 0.0f;
            part[at] = from_float<T>(fmaf(of_row.deviation, rest, other));
            of_weight[at] = of_bias[at] * unit;
        }
        write_part(part, of_x + start, aligned, first, hidden);
        accumulate(of_weight, 0, first);
        if (has_bias) accumulate(of_bias, slots, first);
    }

    // Vectors' first four numbers lie side by side, then their next four: neighbouring threads use different banks.
    __device__ __forceinline__ void accumulate(const float (&values)[width<T>], int from, int first) const {
        const int fours = slots / width<T> * 4;
#pragma unroll
        for (int four = 0; four < width<T> / 4; ++four) {
            float* place = sums + from + four * fours + first / width<T> * 4;
            Vec<float, 4> sum = Vec<float, 4>::load(place);
#pragma unroll
            for (int at = 0; at < 4; ++at) sum[at] += values[four * 4 + at];
            sum.store(place);
        }
    }
};

// Which column of the weights' gradients is in a slot.
template <typename T> __device__ __forceinline__ int column_of(int slot, int slots) {
    const int fours = slots / width<T> * 4;
    const int four = slot / fours, rest = slot % fours;
    return rest / 4 * width<T> + four * 4 + rest % 4;
}

// A thread's part of a row, for `vectors` vectors a thread.
template <typename T, int vectors> struct Kept {
    Part<T> gradient[vectors], x[vectors];

    template <typename Team> __device__ __forceinline__ void read(const Backward<T>& of, int64_t row) {
#pragma unroll
        for (int vector = 0; vector < vectors; ++vector) {
            const int first = (Team::thread() + vector * Team::threads()) * width<T>;
            if (first >= of.hidden) continue;
            gradient[vector] = read_part(of.gradient + row * of.hidden, of.aligned, first, of.hidden);
            x[vector] = read_part(of.x + row * of.hidden, of.aligned, first, of.hidden);
        }
    }
};

template <typename T, typename Team, int vectors>
__device__ __forceinline__ void backward_row(const Backward<T>& of, const Kept<T, vectors>& kept, int64_t row) {
    const Statistics of_row = of.statistics(row);
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int vector = 0; vector < vectors; ++vector) {
        const int first = (Team::thread() + vector * Team::threads()) * width<T>;
        if (first < of.hidden) of.add(sums, kept.gradient[vector], kept.x[vector], first, of_row);
    }
    Team::sums(sums);
    const float two_means[2] = {of.means == nullptr ? 0.0f : sums[0] / float(of.hidden), sums[1] / float(of.hidden)};
#pragma unroll
    for (int vector = 0; vector < vectors; ++vector) {
        const int first = (Team::thread() + vector * Team::threads()) * width<T>;
        if (first < of.hidden) {
            of.finish(two_means, kept.gradient[vector], kept.x[vector], first, row * of.hidden, of_row);
        }
    }
}

template <typename T> __device__ __forceinline__ void backward_row_in_tiles(const Backward<T>& of, int64_t row) {
    const Statistics of_row = of.statistics(row);
    const int64_t start = row * of.hidden;
    const int begin = BlockTeam::thread() * width<T>, step = BlockTeam::threads() * width<T>;
    float sums[2] = {0.0f, 0.0f};
#pragma unroll 4
    for (int first = begin; first < of.hidden; first += step) {
        of.add(sums, read_part(of.gradient + start, of.aligned, first, of.hidden),
               read_part(of.x + start, of.aligned, first, of.hidden), first, of_row);
    }
    BlockTeam::sums(sums);
    const float two_means[2] = {of.means == nullptr ? 0.0f : sums[0] / float(of.hidden), sums[1] / float(of.hidden)};
    for (int first = begin; first < of.hidden; first += step) {
        of.finish(two_means, read_part(of.gradient + start, of.aligned, first, of.hidden),
                  read_part(of.x + start, of.aligned, first, of.hidden), first, start, of_row);
    }
}

// All rows of this team, `vectors` vectors a thread (0: in tiles); `ahead`: the next is read while one is computed.
template <typename T, typename Team, int vectors, bool ahead>
__device__ __forceinline__ void backward_rows(const Backward<T>& of, int64_t rows) {
    const int64_t first = team_index<Team>(), step = int64_t(gridDim.x) * Team::teams_in_block();
    if constexpr (vectors == 0) {
        for (int64_t row = first; row < rows; row += step) backward_row_in_tiles<T>(of, row);
    } else {
        Kept<T, vectors> kept;
        if (ahead && first < rows) kept.template read<Team>(of, first);
        for (int64_t row = first; row < rows; row += step) {
            if constexpr (ahead) {
                Kept<T, vectors> next;
                if (row + step < rows) next.template read<Team>(of, row + step);
                backward_row<T, Team>(of, kept, row);
                kept = next;
            } else {
                kept.template read<Team>(of, row);
                backward_row<T, Team>(of, kept, row);
            }
        }
    }
}

template <typename T, typename Team, int vectors, bool ahead>
__device__ __forceinline__ void backward(T* of_x, float* partials, const T* gradient, const T* x, const T* weight,
                                         const T* added, const float* means, const float* deviations, int64_t rows,
                                         int hidden, int has_bias, int aligned, int weights_aligned,
                                         int sums_are_shared) {
    DYNAMIC_SHARED(float, shared_sums);
    Backward<T> of;
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
    for (int slot = Team::thread(); slot < count; slot += Team::threads()) of.sums[slot] = 0.0f;
    __syncthreads();

    backward_rows<T, Team, vectors, ahead>(of, rows);
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

#define BACKWARD(form, suffix, T, Team, vectors, ahead, threads)                                                       \
    extern "C" __global__ void __launch_bounds__(threads) norm_backward_##form##_##suffix(                             \
        T* of_x, float* partials, const T* gradient, const T* x, const T* weight, const T* added, const float* means,  \
        const float* deviations, int64_t rows, int hidden, int has_bias, int aligned, int weights_aligned,             \
        int sums_are_shared) {                                                                                         \
        backward<T, Team, vectors, ahead>(of_x, partials, gradient, x, weight, added, means, deviations, rows, hidden, \
                                          has_bias, aligned, weights_aligned, sums_are_shared);                        \
    }                                                                                                                  \
    EXPORT(norm_backward_##form##_##suffix)

#define INSTANCES(suffix, T)                                                                                           \
    BACKWARD(warp, suffix, T, WarpTeam, 4, false, 128)                                                                 \
    BACKWARD(block, suffix, T, BlockTeam, 2, true, 512)                                                                \
    BACKWARD(wide, suffix, T, BlockTeam, 4, false, 512)                                                                \
    BACKWARD(tiles, suffix, T, BlockTeam, 0, false, 512)                                                               \
    extern "C" __global__ void __launch_bounds__(256)                                                                  \
        norm_weight_gradients_##suffix(T* of_weight, T* of_bias, const float* partials, int parts, int hidden) {       \
        weight_gradients<T>(of_weight, of_bias, partials, parts, hidden);                                              \
    }                                                                                                                  \
    EXPORT(norm_weight_gradients_##suffix)

INSTANCES(f32, float)
INSTANCES(f16, Half)
INSTANCES(bf16, BFloat16)
