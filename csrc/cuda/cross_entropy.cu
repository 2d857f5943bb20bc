// Softmax's statistics of rows of logits, and the logits' gradients in their place; or both in one launch.
//
// Bytes: e per logit. Statistics read every logit once (e), the gradient reads and writes it (2 e). Where nothing has
// to be exchanged between the two (the vocabulary is not split), one launch does both: a row that fits shared memory is
// read once (2 e in all), a longer one is read again right away, for the most part from L2. What pads the vocabulary is
// not read, nor are rows whose share is 0: their gradient is written as 0, a logit's e.
// Floor: these bytes at the rate of a copy. An exponential per logit and pass is the fast one in 16 bits (its error,
// 1e-6, is far below a 16-bit number's), the exact one in fp32.
//
// A block has a row. Greatest logit and sum of exponentials come in one pass, online (Milakov and Gimelshein, arXiv
// 1805.02867): each thread over its own, then warps, then the block; shape and alignment alone say in which order.
#include "device.cuh"

constexpr int most_threads = 1024;

// Elements 0 to `end` of a row: those before the first 16-byte address, vectors from there on, and what is left.
template <typename T> struct Span {
    static constexpr int width = 16 / int(sizeof(T));
    int64_t head, vectors, end;

    __device__ __forceinline__ Span(const T* row, int64_t count) : end(count) {
        const unsigned long long behind = reinterpret_cast<unsigned long long>(row) % 16;
        head = behind == 0 ? 0 : int64_t(16 - behind) / int64_t(sizeof(T));
        if (head > end) head = end;
        vectors = (end - head) / width;
    }
    // How many are outside vectors, and which they are: fewer than 2 * width.
    __device__ __forceinline__ int64_t singles() const { return end - vectors * width; }
    __device__ __forceinline__ int64_t single(int64_t number) const {
        return number < head ? number : number + vectors * width;
    }
    __device__ __forceinline__ int64_t vector(int64_t number) const { return head + number * width; }
};

template <typename T, int count> __device__ __forceinline__ void take(MaxSum& running, const float (&x)[count]) {
    float greatest = x[0];
#pragma unroll
    for (int at = 1; at < count; ++at) greatest = fmaxf(greatest, x[at]);
    if (greatest > running.max) {
        running.sum *= exponential<T>(running.max - greatest);
        running.max = greatest;
    }
    // Where all are -inf their exponentials are 0, not exp(-inf - -inf); what is no number stays none.
    const float shift = running.max == -INFINITY ? 0.0f : running.max;
    float sum = 0.0f;
#pragma unroll
    for (int at = 0; at < count; ++at) sum += exponential<T>(x[at] - shift);
    running.sum += sum;
}

// The thread's share of a row. Vectors are copied to `kept` where that is given; `depth` of them are under way.
template <typename T>
__device__ __forceinline__ MaxSum running_of_row(const T* row, const Span<T>& span, Vec<T, Span<T>::width>* kept) {
    constexpr int width = Span<T>::width, depth = 4;
    MaxSum running = JoinMaxSums::identity();
    for (int64_t at = threadIdx.x; at < span.singles(); at += blockDim.x) {
        const float x[1] = {to_float(row[span.single(at)])};
        take<T>(running, x);
    }
    for (int64_t first = threadIdx.x; first < span.vectors; first += int64_t(depth) * blockDim.x) {
        Vec<T, width> read[depth];
#pragma unroll
        for (int turn = 0; turn < depth; ++turn) {
            const int64_t at = first + int64_t(turn) * blockDim.x;
            if (at < span.vectors) read[turn] = Vec<T, width>::load(row + span.vector(at));
        }
#pragma unroll
        for (int turn = 0; turn < depth; ++turn) {
            const int64_t at = first + int64_t(turn) * blockDim.x;
            if (at >= span.vectors) break;
            if (kept) read[turn].store(reinterpret_cast<T*>(kept + at));
            float x[width];
#pragma unroll
            for (int one = 0; one < width; ++one) x[one] = to_float(read[turn][one]);
            take<T>(running, x);
        }
    }
    return running;
}

template <typename T> struct Gradient {
    float share, log_sum;
    int64_t label;

    __device__ __forceinline__ T operator()(T logit, int64_t column) const {
        const float probability = exponential<T>(to_float(logit) - log_sum);
        return from_float<T>(share * (column == label ? probability - 1.0f : probability));
    }
};

template <typename T> __device__ __forceinline__ void zero_row(T* row, int64_t first, int64_t end) {
    const Span<T> span(row + first, end - first);
    Vec<T, Span<T>::width> zeros;
#pragma unroll
    for (int one = 0; one < Span<T>::width; ++one) zeros[one] = from_float<T>(0.0f);
    for (int64_t at = threadIdx.x; at < span.singles(); at += blockDim.x) row[first + span.single(at)] = zeros[0];
    for (int64_t at = threadIdx.x; at < span.vectors; at += blockDim.x) zeros.store(row + first + span.vector(at));
}

// `kept`: where the row's vectors are, or null for the row itself. The thread reads only what it wrote there itself.
template <typename T>
__device__ __forceinline__ void gradient_of_row(T* row, const Span<T>& span, const Vec<T, Span<T>::width>* kept,
                                                const Gradient<T>& gradient) {
    constexpr int width = Span<T>::width, depth = 4;
    for (int64_t at = threadIdx.x; at < span.singles(); at += blockDim.x) {
        const int64_t column = span.single(at);
        row[column] = gradient(row[column], column);
    }
    for (int64_t first = threadIdx.x; first < span.vectors; first += int64_t(depth) * blockDim.x) {
        Vec<T, width> read[depth];
#pragma unroll
        for (int turn = 0; turn < depth; ++turn) {
            const int64_t at = first + int64_t(turn) * blockDim.x;
            if (at >= span.vectors) break;
            read[turn] = Vec<T, width>::load(kept ? reinterpret_cast<const T*>(kept + at) : row + span.vector(at));
        }
#pragma unroll
        for (int turn = 0; turn < depth; ++turn) {
            const int64_t at = first + int64_t(turn) * blockDim.x;
            if (at >= span.vectors) break;
#pragma unroll
            for (int one = 0; one < width; ++one) {
                read[turn][one] = gradient(read[turn][one], span.vector(at) + one);
            }
            read[turn].store(row + span.vector(at));
        }
    }
}

template <typename T>
__device__ __forceinline__ float label_logit_of(const T* row, int64_t label, int64_t counted) {
    if (label < 0) return 0.0f;  // another rank's
    return label < counted ? to_float(row[label]) : -INFINITY;  // a token that the vocabulary does not have
}

// counted: how many logits of a row have a part; the columns behind them are padding.
template <typename T>
__device__ __forceinline__ void statistics(float* greatest, float* sum, float* label_logit, const T* logits,
                                           const int64_t* labels, int64_t columns, int64_t counted) {
    const int64_t token = blockIdx.x;
    const T* row = logits + token * columns;
    const MaxSum whole = block_max_sum(running_of_row<T>(row, Span<T>(row, counted), nullptr));
    if (threadIdx.x != 0) return;
    greatest[token] = whole.max;
    sum[token] = whole.sum;
    label_logit[token] = label_logit_of(row, labels[token], counted);
}

template <typename T>
__device__ __forceinline__ void to_gradient(T* logits, const int64_t* labels, const float* log_sum, const float* share,
                                            int64_t columns, int64_t counted) {
    const int64_t token = blockIdx.x;
    T* row = logits + token * columns;
    if (share[token] == 0.0f) return zero_row(row, 0, columns);
    gradient_of_row<T>(row, Span<T>(row, counted), nullptr, {share[token], log_sum[token], labels[token]});
    zero_row(row, counted, columns);
}

// Both, of a vocabulary that is whole here; log_sum is written. is_kept: shared memory holds a row's vectors.
template <typename T>
__device__ __forceinline__ void whole(T* logits, float* log_sum, float* label_logit, const int64_t* labels,
                                      const float* share, int64_t columns, int64_t counted, int32_t is_kept) {
    using Vector = Vec<T, Span<T>::width>;
    DYNAMIC_SHARED(Vector, shared_row);
    const int64_t token = blockIdx.x;
    T* row = logits + token * columns;
    const Span<T> span(row, counted);
    Vector* const kept = is_kept ? shared_row : nullptr;
    const MaxSum of_row = block_max_sum(running_of_row<T>(row, span, kept));
    const float of_all = of_row.max + logf(of_row.sum);
    if (threadIdx.x == 0) {
        log_sum[token] = of_all;
        label_logit[token] = label_logit_of(row, labels[token], counted);
    }
    __syncthreads();  // the label's logit is read before its gradient takes its place
    if (share[token] == 0.0f) return zero_row(row, 0, columns);
    gradient_of_row<T>(row, span, kept, {share[token], of_all, labels[token]});
    zero_row(row, counted, columns);
}

extern "C" __global__ void __launch_bounds__(most_threads) cross_entropy_statistics_f32(
    float* greatest, float* sum, float* label_logit, const float* logits, const int64_t* labels, int64_t columns,
    int64_t counted) {
    statistics<float>(greatest, sum, label_logit, logits, labels, columns, counted);
}
EXPORT(cross_entropy_statistics_f32)

extern "C" __global__ void __launch_bounds__(most_threads) cross_entropy_statistics_f16(
    float* greatest, float* sum, float* label_logit, const Half* logits, const int64_t* labels, int64_t columns,
    int64_t counted) {
    statistics<Half>(greatest, sum, label_logit, logits, labels, columns, counted);
}
EXPORT(cross_entropy_statistics_f16)

extern "C" __global__ void __launch_bounds__(most_threads) cross_entropy_statistics_bf16(
    float* greatest, float* sum, float* label_logit, const BFloat16* logits, const int64_t* labels, int64_t columns,
    int64_t counted) {
    statistics<BFloat16>(greatest, sum, label_logit, logits, labels, columns, counted);
}
EXPORT(cross_entropy_statistics_bf16)

extern "C" __global__ void __launch_bounds__(most_threads) cross_entropy_to_gradient_f32(
    float* logits, const int64_t* labels, const float* log_sum, const float* share, int64_t columns, int64_t counted) {
    to_gradient<float>(logits, labels, log_sum, share, columns, counted);
}
EXPORT(cross_entropy_to_gradient_f32)

extern "C" __global__ void __launch_bounds__(most_threads) cross_entropy_to_gradient_f16(
    Half* logits, const int64_t* labels, const float* log_sum, const float* share, int64_t columns, int64_t counted) {
    to_gradient<Half>(logits, labels, log_sum, share, columns, counted);
}
EXPORT(cross_entropy_to_gradient_f16)

extern "C" __global__ void __launch_bounds__(most_threads) cross_entropy_to_gradient_bf16(
    BFloat16* logits, const int64_t* labels, const float* log_sum, const float* share, int64_t columns,
    int64_t counted) {
    to_gradient<BFloat16>(logits, labels, log_sum, share, columns, counted);
}
EXPORT(cross_entropy_to_gradient_bf16)

extern "C" __global__ void __launch_bounds__(most_threads) cross_entropy_whole_f32(
    float* logits, float* log_sum, float* label_logit, const int64_t* labels, const float* share, int64_t columns,
    int64_t counted, int32_t is_kept) {
    whole<float>(logits, log_sum, label_logit, labels, share, columns, counted, is_kept);
}
EXPORT(cross_entropy_whole_f32)

extern "C" __global__ void __launch_bounds__(most_threads) cross_entropy_whole_f16(
    Half* logits, float* log_sum, float* label_logit, const int64_t* labels, const float* share, int64_t columns,
    int64_t counted, int32_t is_kept) {
    whole<Half>(logits, log_sum, label_logit, labels, share, columns, counted, is_kept);
}
EXPORT(cross_entropy_whole_f16)

extern "C" __global__ void __launch_bounds__(most_threads) cross_entropy_whole_bf16(
    BFloat16* logits, float* log_sum, float* label_logit, const int64_t* labels, const float* share, int64_t columns,
    int64_t counted, int32_t is_kept) {
    whole<BFloat16>(logits, log_sum, label_logit, labels, share, columns, counted, is_kept);
}
EXPORT(cross_entropy_whole_bf16)
