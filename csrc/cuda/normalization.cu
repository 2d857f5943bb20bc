// LayerNorm and RMSNorm over rows of h elements, with a residual added first or not; forward and backward.
//
// forward   t = x + residual, rounded to their type
//           y = (t - mean) d weight + bias,  d = 1 / sqrt(mean((t - mean)^2) + epsilon)
// backward  g = gradient weight,  u = (t - mean) d:  of_x = d (g - mean(g) - u mean(g u)) + added
//           of_weight = sum over rows of gradient u,  of_bias = sum over rows of gradient
// RMSNorm is the same with a mean of 0 and without mean(g); a null pointer for the means says so. Means and d are fp32.
// The variance is that of differences, never mean(t^2) - mean(t)^2: of registers, and over tiles by Chan's formula.
// Plain reference: trainer/kernels/normalization.py, `_by_torch`.
//
// Bytes, with e the size of an element: forward 2 e r h (with a residual 4 e r h), backward 3 e r h (with `added`
// 4 e r h), and 16 h for each block of the backward pass: its part of the weights' gradients, written and read again.
// Floor: those bytes at the chip's copy rate; r 8192, h 4096 in 16 bits: 0.13 and 0.20 GB.
//
// A row of h is read by, and kept in         forward    backward in 16 bits, in fp32
//   warp    a warp; registers                to 1,024   to 1,024      to 512
//   block   up to 512 threads; registers     to 16,384  to 8,192      to 4,096   next row read while one is computed
//   wide    the same                                    to 16,384     to 8,192
//   tiles   512 threads, which read it twice to 32,768  to 32,768     to 32,768  second time out of the L2 cache
// Blocks of the backward pass go through many rows each. A block's part of the weights' gradients is in shared memory,
// or where that is too small in its part of `partials`. `norm_weight_gradients` adds up all parts: rows and parts in an
// order that the grid alone says.
#include "rows.cuh"

namespace {

// ---------------------------------------------------------------------------------------------------------- forward
template <typename T> struct ForwardRow {
    const T *x, *residual;  // residual: null, or x is added to it and written to `total`
    T *total, *y;
    const T *weight, *bias;  // bias: null for none
    int hidden;
    bool aligned, weights_aligned;

    // values <- those of a tile that begins with vector `tile`, 0 beyond the row; `total` is written if it is to be.
    template <typename Team> __device__ __forceinline__ void read(float (&values)[values_of_thread], int tile) const {
#pragma unroll
        for (int vector = 0; vector < vectors_of_thread<T>; ++vector) {
            const int first = (tile + Team::thread() + vector * Team::threads()) * width<T>;
            Part<T> part;
            if (first < hidden) {
                part = read_part(x, aligned, first, hidden);
            } else {
#pragma unroll
                for (int at = 0; at < width<T>; ++at) part[at] = from_float<T>(0.0f);
            }
            if (residual != nullptr && first < hidden) {
                const Part<T> other = read_part(residual, aligned, first, hidden);
#pragma unroll
                for (int at = 0; at < width<T>; ++at) {
                    part[at] = from_float<T>(to_float(part[at]) + to_float(other[at]));
                }
                write_part(part, total, aligned, first, hidden);
            }
#pragma unroll
            for (int at = 0; at < width<T>; ++at) values[vector * width<T> + at] = to_float(part[at]);
        }
    }

    template <typename Team>
    __device__ __forceinline__ void write(const float (&values)[values_of_thread], int tile, float mean,
                                          float deviation) const {
#pragma unroll
        for (int vector = 0; vector < vectors_of_thread<T>; ++vector) {
            const int first = (tile + Team::thread() + vector * Team::threads()) * width<T>;
            if (first >= hidden) continue;
            const Part<T> weights = read_part(weight, weights_aligned, first, hidden);
            Part<T> biases, part;
            if (bias != nullptr) biases = read_part(bias, weights_aligned, first, hidden);
#pragma unroll
            for (int at = 0; at < width<T>; ++at) {
                const float unit = (values[vector * width<T> + at] - mean) * deviation;
                const float shift = bias != nullptr ? to_float(biases[at]) : 0.0f;
                part[at] = from_float<T>(fmaf(unit, to_float(weights[at]), shift));
            }
            write_part(part, y, aligned, first, hidden);
        }
    }
};

__device__ __forceinline__ float sum_of(const float (&values)[values_of_thread]) {
    float sum = 0.0f;
#pragma unroll
    for (int at = 0; at < values_of_thread; ++at) sum += values[at];
    return sum;
}

// The sum of (value - mean)^2 over a thread's values of a tile.
template <typename T, typename Team>
__device__ __forceinline__ float squares_of(const float (&values)[values_of_thread], float mean, int tile, int hidden) {
    float sum = 0.0f;
#pragma unroll
    for (int vector = 0; vector < vectors_of_thread<T>; ++vector) {
        const int first = (tile + Team::thread() + vector * Team::threads()) * width<T>;
#pragma unroll
        for (int at = 0; at < width<T>; ++at) {
            const float difference = first + at < hidden ? values[vector * width<T> + at] - mean : 0.0f;
            sum = fmaf(difference, difference, sum);
        }
    }
    return sum;
}

struct Moments {
    float mean, squares;  // squares: the sum of squared differences from the mean
};

template <typename T, typename Team>
__device__ __forceinline__ Moments moments_of(const float (&values)[values_of_thread], int tile, int hidden,
                                              bool has_mean) {
    const int count = min(hidden - tile * width<T>, Team::threads() * values_of_thread);
    Moments moments;
    moments.mean = has_mean ? Team::sum(sum_of(values)) / float(count) : 0.0f;
    moments.squares = Team::sum(squares_of<T, Team>(values, moments.mean, tile, hidden));
    return moments;
}

// Chan, Golub and LeVeque: of two sets of numbers, those of both together.
__device__ __forceinline__ Moments joined(Moments a, float count_a, Moments b, float count_b) {
    const float difference = b.mean - a.mean, share = count_b / (count_a + count_b);
    Moments both;
    both.mean = fmaf(difference, share, a.mean);
    both.squares = a.squares + b.squares + difference * difference * (count_a * share);
    return both;
}

template <typename T, typename Team>
__device__ __forceinline__ Moments normalize(const ForwardRow<T>& row, float epsilon, bool has_mean, float* deviation) {
    float values[values_of_thread];
    row.template read<Team>(values, 0);
    const Moments moments = moments_of<T, Team>(values, 0, row.hidden, has_mean);
    *deviation = 1.0f / sqrtf(moments.squares / float(row.hidden) + epsilon);
    row.template write<Team>(values, 0, moments.mean, *deviation);
    return moments;
}

template <typename T>
__device__ __forceinline__ Moments normalize_in_tiles(ForwardRow<T> row, float epsilon, bool has_mean,
                                                      float* deviation) {
    float values[values_of_thread];
    const int tile_vectors = vectors_of_thread<T> * BlockTeam::threads();
    const int vectors = (row.hidden + width<T> - 1) / width<T>;
    Moments moments = {0.0f, 0.0f};
    for (int tile = 0; tile < vectors; tile += tile_vectors) {
        row.template read<BlockTeam>(values, tile);
        const Moments of_tile = moments_of<T, BlockTeam>(values, tile, row.hidden, has_mean);
        const int before = tile * width<T>, count = min(row.hidden - before, tile_vectors * width<T>);
        moments = tile == 0 ? of_tile : joined(moments, float(before), of_tile, float(count));
    }
    *deviation = 1.0f / sqrtf(moments.squares / float(row.hidden) + epsilon);
    if (row.residual != nullptr) {  // their sum is there already, each thread's own
        row.x = row.total;
        row.residual = nullptr;
    }
    for (int tile = 0; tile < vectors; tile += tile_vectors) {
        row.template read<BlockTeam>(values, tile);
        row.template write<BlockTeam>(values, tile, moments.mean, *deviation);
    }
    return moments;
}

template <typename T, typename Team, bool in_tiles>
__device__ __forceinline__ void forward(T* y, T* total, float* means, float* deviations, const T* x, const T* residual,
                                        const T* weight, const T* bias, float epsilon, int64_t rows, int hidden,
                                        int aligned, int weights_aligned) {
    const int64_t index = team_index<Team>();
    if (index >= rows) return;
    const int64_t start = index * hidden;
    ForwardRow<T> row;
    row.x = x + start;
    row.residual = residual == nullptr ? nullptr : residual + start;
    row.total = total + start;
    row.y = y + start;
    row.weight = weight;
    row.bias = bias;
    row.hidden = hidden;
    row.aligned = aligned != 0;
    row.weights_aligned = weights_aligned != 0;
    float deviation;
    Moments moments;
    if (in_tiles) {
        moments = normalize_in_tiles<T>(row, epsilon, means != nullptr, &deviation);
    } else {
        moments = normalize<T, Team>(row, epsilon, means != nullptr, &deviation);
    }
    if (Team::thread() == 0) {
        if (means != nullptr) means[index] = moments.mean;
        deviations[index] = deviation;
    }
}

// --------------------------------------------------------------------------------------------------------- backward
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

#define FORWARD(form, suffix, T, Team, in_tiles, threads)                                                              \
    extern "C" __global__ void __launch_bounds__(threads) norm_##form##_##suffix(                                      \
        T* y, T* total, float* means, float* deviations, const T* x, const T* residual, const T* weight,               \
        const T* bias, float epsilon, int64_t rows, int hidden, int aligned, int weights_aligned) {                    \
        forward<T, Team, in_tiles>(y, total, means, deviations, x, residual, weight, bias, epsilon, rows, hidden,      \
                                   aligned, weights_aligned);                                                          \
    }                                                                                                                  \
    EXPORT(norm_##form##_##suffix)

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
    FORWARD(warp, suffix, T, WarpTeam, false, 128)                                                                     \
    FORWARD(block, suffix, T, BlockTeam, false, 512)                                                                   \
    FORWARD(tiles, suffix, T, BlockTeam, true, 512)                                                                    \
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
