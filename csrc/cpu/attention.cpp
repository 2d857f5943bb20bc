// Causal self-attention and its gradients, with ALiBi as a slope per head and keys shared by groups of heads.
//
// out_i = sum over j <= i of p_ij v_j with p_ij = exp(scale q_i k_j + slope (j - i) - log_sum_i). Scores are never in
// memory whole: they are made a few rows by a block of keys at a time, the softmax goes on from block to block, and the
// backward pass makes them again from q, k and log_sum (Dao et al., arXiv 2205.14135). What it reads and writes lies
// where the product with weights puts it and wants it, in any strides: nothing is transposed, repeated or padded first.
//
// Work: 2 s^2 d multiply-adds a head forward and 5 s^2 d backward, halved by the mask. Bytes: q, k, v and out once
// forward; those, their gradients and out's once more backward. Floor: the processor's multiply-adds, from head sizes
// of 32 on; one exponential per score and pass stands beside them.
//
// Results do not depend on the number of threads: a thread has a whole group of heads of a sample.
#include <cstdlib>
#include <omp.h>

#include "vectors.h"

using namespace vectors;

namespace {

// A tile of products: 6 rows by two vectors, twelve sums that live in registers.
constexpr int64_t tile_rows = 6;
constexpr int64_t tile_columns = 2 * lanes;
// Blocks are whole tiles either way. Forward, a block of keys and values stays in the second-level cache; backward also
// the gradients of them, and scores of a block of queries.
constexpr int64_t forward_keys = 288;
constexpr int64_t backward_keys = 96;
constexpr int64_t backward_queries = 48;
static_assert(forward_keys % tile_rows == 0 && forward_keys % tile_columns == 0, "whole tiles");
static_assert(backward_keys % tile_rows == 0 && backward_keys % tile_columns == 0, "whole tiles");
static_assert(backward_queries % tile_rows == 0 && backward_keys % backward_queries == 0, "whole tiles");
// Rows of a block lie this much further apart than they are long, so that a column's are not all in one cache set.
constexpr int64_t gap = tile_columns;

struct Shape {
    int64_t samples, groups, of_group, length, head_size;
    float scale;

    int64_t heads() const { return groups * of_group; }
    int64_t padded_size() const { return rounded_up(head_size, tile_columns); }
    int64_t padded_length() const { return rounded_up(length, backward_keys); }
    static int64_t rounded_up(int64_t number, int64_t step) { return (number + step - 1) / step * step; }
};

// Where a tensor has the row of one position: of a head (member of a group), or of what a group shares. Elements of a
// row lie side by side.
template <typename Pointer>
struct Rows {
    Pointer first;
    int64_t position;

    Rows(Pointer tensor, const int64_t* strides, int64_t sample, int64_t group, int64_t member)
        : first(tensor + sample * strides[0] + group * strides[1] + member * strides[2]), position(strides[3]) {}
    Pointer row(int64_t index) const { return first + index * position; }
};

template <typename Element>
inline void widened(const Element* from, int64_t count, float* to, int64_t padded) {
    int64_t column = 0;
    for (; column + lanes <= count; column += lanes)
        store(to + column, load(from + column));
    if (column < count) {
        store(to + column, load(from + column, count - column));
        column += lanes;
    }
    for (; column < padded; column += lanes)
        store(to + column, Vector{});
}

template <typename Element>
inline void narrowed(const float* from, float factor, Element* to, int64_t count) {
    int64_t column = 0;
    for (; column + lanes <= count; column += lanes)
        store(to + column, load(from + column) * factor);
    if (column < count)
        store(to + column, load(from + column) * factor, count - column);
}

// Rows `begin` to `begin + rows` in fp32, with zeros where the head or the sequence ends.
template <typename Element>
void gathered(const Rows<const Element*>& from, const Shape& shape, int64_t begin, int64_t rows, float* to) {
    const int64_t size = shape.padded_size();
    for (int64_t row = 0; row < rows; row++) {
        if (begin + row < shape.length)
            widened(from.row(begin + row), shape.head_size, to + row * size, size);
        else
            std::memset(to + row * size, 0, size * sizeof(float));
    }
}

void transposed(const float* rows_by_size, int64_t rows, int64_t size, float* to, int64_t to_stride) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < size; column++)
            to[column * to_stride + row] = rows_by_size[row * size + column];
}

// How the left operand of a product lies: element (row, depth), one of the two steps being 1.
struct ByRows {
    const float* first;
    int64_t stride;
    float operator()(int64_t row, int64_t depth) const { return first[row * stride + depth]; }
};
struct ByColumns {
    const float* first;
    int64_t stride;
    float operator()(int64_t row, int64_t depth) const { return first[depth * stride + row]; }
};

// to[6, 2 vectors] = or += left[6, depth] right[depth, 2 vectors]
template <bool adds, typename Left>
inline __attribute__((always_inline)) void tile(
    Left left, const float* right, int64_t right_stride, int64_t depth, float* to, int64_t to_stride) {
    Vector sums[tile_rows][2] = {};
    for (int64_t step = 0; step < depth; step++) {
        const Vector low = load(right + step * right_stride), high = load(right + step * right_stride + lanes);
#pragma GCC unroll 6
        for (int64_t row = 0; row < tile_rows; row++) {
            const Vector factor = broadcast(left(row, step));
            sums[row][0] = multiply_add(factor, low, sums[row][0]);
            sums[row][1] = multiply_add(factor, high, sums[row][1]);
        }
    }
#pragma GCC unroll 6
    for (int64_t row = 0; row < tile_rows; row++) {
        float* at = to + row * to_stride;
        store(at, adds ? load(at) + sums[row][0] : sums[row][0]);
        store(at + lanes, adds ? load(at + lanes) + sums[row][1] : sums[row][1]);
    }
}

// The same for as many columns, in whole tiles, as `columns` touches.
template <bool adds, typename Left>
inline void tiles(Left left, const float* right, int64_t right_stride, int64_t depth, float* to, int64_t to_stride,
                  int64_t columns) {
    for (int64_t column = 0; column < columns; column += tile_columns)
        tile<adds>(left, right + column, right_stride, depth, to + column, to_stride);
}

inline int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// Numbers 0, 1, 2 ... of a vector's lanes.
inline Vector counted() {
    Vector numbers;
    for (int64_t lane = 0; lane < lanes; lane++)
        numbers[lane] = (float)lane;
    return numbers;
}

// What is added to a query's scores at a vector of keys, `distance` (at most 0 where they are seen) from key to query.
inline Vector biased(Vector products, float scale, float slope, Vector distance) {
    const Vector scores = multiply_add(products, broadcast(scale), distance * slope);
    return distance > 0.0f ? broadcast(-__builtin_inff()) : scores;
}

// ---------------------------------------------------------------------------------------------------------- forward

struct ForwardSpace {
    float *keys, *keys_by_depth, *values, *queries, *scores, *mixed, *greatest, *sums;

    static int64_t size(const Shape& shape) {
        const int64_t size = shape.padded_size(), length = shape.padded_length();
        return 2 * forward_keys * size + size * (forward_keys + gap) + tile_rows * (size + forward_keys) +
               length * (size + 2);
    }
    ForwardSpace(float* space, const Shape& shape) {
        const int64_t size = shape.padded_size(), length = shape.padded_length();
        keys = space;
        values = keys + forward_keys * size;
        keys_by_depth = values + forward_keys * size;
        queries = keys_by_depth + size * (forward_keys + gap);
        scores = queries + tile_rows * size;
        mixed = scores + tile_rows * forward_keys;
        greatest = mixed + length * size;
        sums = greatest + length;
    }
};

// Six rows of products become weights, and what their queries had so far is weighed anew.
void soften(const ForwardSpace& space, const Shape& shape, float slope, int64_t query, int64_t key, int64_t keys) {
    const int64_t size = shape.padded_size();
    const Vector numbers = counted();
    for (int64_t row = 0; row < tile_rows; row++) {
        float* scores = space.scores + row * forward_keys;
        Vector most = broadcast(-__builtin_inff());
        for (int64_t column = 0; column < keys; column += lanes) {
            const Vector score =
                biased(load(scores + column), shape.scale, slope, numbers + (float)(key + column - query - row));
            store(scores + column, score);
            most = greater_of(score, most);
        }
        const float before = space.greatest[query + row];
        const float now = greatest(most) > before ? greatest(most) : before;
        Vector total{};
        for (int64_t column = 0; column < keys; column += lanes) {
            const Vector weight = exponential(load(scores + column) - now);
            store(scores + column, weight);
            total += weight;
        }
        const float kept = key ? exponential(broadcast(before - now))[0] : 0.0f;
        space.greatest[query + row] = now;
        space.sums[query + row] = space.sums[query + row] * kept + sum(total);
        if (key && kept != 1.0f)
            for (int64_t column = 0; column < size; column += lanes) {
                float* at = space.mixed + (query + row) * size + column;
                store(at, load(at) * kept);
            }
    }
}

template <typename Element>
void forward_of_head(const Rows<const Element*>& q, const Rows<const Element*>& k, const Rows<const Element*>& v,
                     float slope, const Rows<Element*>& out, float* log_sums, const Shape& shape,
                     const ForwardSpace& space) {
    const int64_t size = shape.padded_size(), length = shape.length;
    for (int64_t row = 0; row < shape.padded_length(); row++) {
        space.greatest[row] = -__builtin_inff();
        space.sums[row] = 0.0f;
    }
    for (int64_t key = 0; key < length; key += forward_keys) {
        const int64_t block = least(forward_keys, Shape::rounded_up(length - key, tile_columns));
        gathered(k, shape, key, block, space.keys);
        transposed(space.keys, block, size, space.keys_by_depth, forward_keys + gap);
        gathered(v, shape, key, block, space.values);
        for (int64_t query = key; query < length; query += tile_rows) {
            const int64_t seen = least(block, query + tile_rows - key);
            const int64_t keys = Shape::rounded_up(seen, tile_columns);
            float* mixed = space.mixed + query * size;
            gathered(q, shape, query, tile_rows, space.queries);
            tiles<false>(ByRows{space.queries, size}, space.keys_by_depth, forward_keys + gap, size, space.scores,
                         forward_keys, keys);
            soften(space, shape, slope, query, key, keys);
            if (key)
                tiles<true>(ByRows{space.scores, forward_keys}, space.values, size, seen, mixed, size, size);
            else
                tiles<false>(ByRows{space.scores, forward_keys}, space.values, size, seen, mixed, size, size);
        }
    }
    for (int64_t row = 0; row < length; row++) {
        narrowed(space.mixed + row * size, 1.0f / space.sums[row], out.row(row), shape.head_size);
        log_sums[row] = space.greatest[row] + __builtin_logf(space.sums[row]);
    }
}

// --------------------------------------------------------------------------------------------------------- backward

struct BackwardSpace {
    float *of_keys, *of_values, *of_queries;                  // gradients of a head's whole sequence
    float *keys, *keys_by_depth, *values_by_depth;            // a block of keys
    float *queries, *of_mixed, *weights, *of_scores, *rests;  // a block of queries
    static constexpr int64_t by_depth = backward_keys + gap, by_key = backward_keys + gap;

    static int64_t size(const Shape& shape) {
        const int64_t size = shape.padded_size();
        return (3 * shape.padded_length() + backward_keys + 2 * backward_queries) * size + 2 * size * by_depth +
               2 * backward_queries * by_key + 2 * shape.padded_length();
    }
    BackwardSpace(float* space, const Shape& shape) {
        const int64_t size = shape.padded_size(), whole = shape.padded_length() * size;
        of_keys = space;
        of_values = of_keys + whole;
        of_queries = of_values + whole;
        keys = of_queries + whole;
        keys_by_depth = keys + backward_keys * size;
        values_by_depth = keys_by_depth + size * by_depth;
        queries = values_by_depth + size * by_depth;
        of_mixed = queries + backward_queries * size;
        weights = of_mixed + backward_queries * size;
        of_scores = weights + backward_queries * by_key;
        rests = of_scores + backward_queries * by_key;
    }
};

// What softmax's gradient takes off in each row: sum over the head of out and its gradient.
template <typename Element>
void find_rests(const Rows<const Element*>& of_out, const Rows<const Element*>& out, const Shape& shape,
                const BackwardSpace& space) {
    for (int64_t row = 0; row < shape.length; row++) {
        Vector total{};
        int64_t column = 0;
        for (; column + lanes <= shape.head_size; column += lanes)
            total = multiply_add(load(of_out.row(row) + column), load(out.row(row) + column), total);
        if (const int64_t left = shape.head_size - column; left > 0)
            total = multiply_add(load(of_out.row(row) + column, left), load(out.row(row) + column, left), total);
        space.rests[row] = sum(total);
    }
}

// Weights of six queries and the gradients of their scores, from two products.
void sharpen(const BackwardSpace& space, const Shape& shape, float slope, const float* log_sums, int64_t query,
             int64_t row, int64_t key, int64_t keys) {
    const Vector numbers = counted();
    for (int64_t end = row + tile_rows; row < end; row++) {
        // A row behind the sequence has no weights, and what it adds to the gradients of keys is 0.
        const bool exists = query + row < shape.length;
        const float log_sum = exists ? log_sums[query + row] : __builtin_inff();
        const float rest = exists ? space.rests[query + row] : 0.0f;
        float* weights = space.weights + row * space.by_key;
        float* of_scores = space.of_scores + row * space.by_key;
        for (int64_t column = 0; column < keys; column += lanes) {
            const Vector score =
                biased(load(weights + column), shape.scale, slope, numbers + (float)(key + column - query - row));
            const Vector weight = exponential(score - log_sum);
            store(weights + column, weight);
            store(of_scores + column, weight * (load(of_scores + column) - rest) * shape.scale);
        }
    }
}

// A block of queries against a block of keys: adds to the gradients of both.
void backward_of_blocks(const BackwardSpace& space, const Shape& shape, float slope, const float* log_sums,
                        int64_t query, int64_t queries, int64_t key, int64_t keys) {
    const int64_t size = shape.padded_size(), by_depth = space.by_depth, by_key = space.by_key;
    for (int64_t row = 0; row < queries; row += tile_rows) {
        const int64_t seen = least(keys, query + row + tile_rows - key);
        float *weights = space.weights + row * by_key, *of_scores = space.of_scores + row * by_key;
        tiles<false>(ByRows{space.queries + row * size, size}, space.keys_by_depth, by_depth, size, weights, by_key,
                     seen);
        tiles<false>(ByRows{space.of_mixed + row * size, size}, space.values_by_depth, by_depth, size, of_scores,
                     by_key, seen);
        sharpen(space, shape, slope, log_sums, query, row, key, Shape::rounded_up(seen, tile_columns));
        tiles<true>(ByRows{of_scores, by_key}, space.keys, size, seen, space.of_queries + (query + row) * size, size,
                    size);
    }
    for (int64_t column = 0; column < keys; column += tile_rows) {
        const int64_t first = key + column > query ? key + column - query : 0;  // the first query that sees these keys
        if (first >= queries)
            break;
        tiles<true>(ByColumns{space.weights + first * by_key + column, by_key}, space.of_mixed + first * size, size,
                    queries - first, space.of_values + (key + column) * size, size, size);
        tiles<true>(ByColumns{space.of_scores + first * by_key + column, by_key}, space.queries + first * size, size,
                    queries - first, space.of_keys + (key + column) * size, size, size);
    }
}

template <typename Element>
void backward_of_head(const Rows<const Element*>& of_out, const Rows<const Element*>& q, const Rows<const Element*>& k,
                      const Rows<const Element*>& v, const Rows<const Element*>& out, float slope,
                      const float* log_sums, const Rows<Element*>& of_q, const Shape& shape,
                      const BackwardSpace& space) {
    const int64_t size = shape.padded_size(), length = shape.length;
    find_rests(of_out, out, shape, space);
    std::memset(space.of_queries, 0, shape.padded_length() * size * sizeof(float));
    for (int64_t key = 0; key < length; key += backward_keys) {
        const int64_t keys = least(backward_keys, Shape::rounded_up(length - key, tile_rows));
        // Values pass through the place of the keys, which are wanted both ways round.
        gathered(v, shape, key, backward_keys, space.keys);
        transposed(space.keys, backward_keys, size, space.values_by_depth, space.by_depth);
        gathered(k, shape, key, backward_keys, space.keys);
        transposed(space.keys, backward_keys, size, space.keys_by_depth, space.by_depth);
        for (int64_t query = key; query < length; query += backward_queries) {
            const int64_t queries = least(backward_queries, Shape::rounded_up(length - query, tile_rows));
            gathered(q, shape, query, queries, space.queries);
            gathered(of_out, shape, query, queries, space.of_mixed);
            backward_of_blocks(space, shape, slope, log_sums, query, queries, key, keys);
        }
    }
    for (int64_t row = 0; row < length; row++)
        narrowed(space.of_queries + row * size, 1.0f, of_q.row(row), shape.head_size);
}

// ------------------------------------------------------------------------------------------------------- all of them

struct Space {
    float* first;
    int64_t each;

    explicit Space(int64_t floats) : each(Shape::rounded_up(floats, 64)) {
        first = static_cast<float*>(std::aligned_alloc(64, omp_get_max_threads() * each * sizeof(float)));
    }
    ~Space() { std::free(first); }
    float* own() const { return first + omp_get_thread_num() * each; }
};

// Strides, in elements, of (sample, group, member, position), for each tensor in the order of the arguments.
template <typename Element>
int forward(const Element* q, const Element* k, const Element* v, const float* slopes, Element* out, float* log_sums,
            const int64_t* strides, const Shape& shape) {
    const Space space(ForwardSpace::size(shape));
    if (!space.first)
        return 1;
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t sample = 0; sample < shape.samples; sample++)
        for (int64_t head = 0; head < shape.heads(); head++) {
            const int64_t group = head / shape.of_group, member = head % shape.of_group;
            forward_of_head<Element>({q, strides, sample, group, member}, {k, strides + 4, sample, group, 0},
                                     {v, strides + 8, sample, group, 0}, slopes ? slopes[head] : 0.0f,
                                     {out, strides + 12, sample, group, member},
                                     log_sums + (sample * shape.heads() + head) * shape.length, shape,
                                     ForwardSpace(space.own(), shape));
        }
    return 0;
}

template <typename Element>
int backward(const Element* of_out, const Element* q, const Element* k, const Element* v, const Element* out,
             const float* slopes, const float* log_sums, Element* of_q, Element* of_k, Element* of_v,
             const int64_t* strides, const Shape& shape) {
    const Space space(BackwardSpace::size(shape));
    if (!space.first)
        return 1;
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t sample = 0; sample < shape.samples; sample++)
        for (int64_t group = 0; group < shape.groups; group++) {
            const BackwardSpace own(space.own(), shape);
            const int64_t size = shape.padded_size();
            std::memset(own.of_keys, 0, 2 * shape.padded_length() * size * sizeof(float));
            const Rows<const Element*> keys{k, strides + 8, sample, group, 0}, values{v, strides + 12, sample, group, 0};
            for (int64_t member = 0; member < shape.of_group; member++) {
                const int64_t head = group * shape.of_group + member;
                backward_of_head<Element>({of_out, strides, sample, group, member},
                                          {q, strides + 4, sample, group, member}, keys, values,
                                          {out, strides + 16, sample, group, member}, slopes ? slopes[head] : 0.0f,
                                          log_sums + (sample * shape.heads() + head) * shape.length,
                                          {of_q, strides + 20, sample, group, member}, shape, own);
            }
            const Rows<Element*> to_k{of_k, strides + 24, sample, group, 0}, to_v{of_v, strides + 28, sample, group, 0};
            for (int64_t row = 0; row < shape.length; row++) {
                narrowed(own.of_keys + row * size, 1.0f, to_k.row(row), shape.head_size);
                narrowed(own.of_values + row * size, 1.0f, to_v.row(row), shape.head_size);
            }
        }
    return 0;
}

}  // namespace

// Both return 0, or 1 where there is no memory for what threads work in. Without `slopes` (fp32 [heads]) there is no
// ALiBi. log_sums: fp32 [samples, heads, length]. `strides` are four a tensor, see above: of q, k, v, out forward;
// backward of out's gradient, q, k, v, out, and the gradients of q, k, v.
#pragma GCC visibility push(default)
extern "C" {

int attention_forward_f32(const float* q, const float* k, const float* v, const float* slopes, float* out,
                          float* log_sums, const int64_t* strides, int64_t samples, int64_t groups, int64_t of_group,
                          int64_t length, int64_t head_size, float scale) {
    return forward(q, k, v, slopes, out, log_sums, strides, {samples, groups, of_group, length, head_size, scale});
}

int attention_forward_bf16(const BFloat16* q, const BFloat16* k, const BFloat16* v, const float* slopes, BFloat16* out,
                           float* log_sums, const int64_t* strides, int64_t samples, int64_t groups, int64_t of_group,
                           int64_t length, int64_t head_size, float scale) {
    return forward(q, k, v, slopes, out, log_sums, strides, {samples, groups, of_group, length, head_size, scale});
}

int attention_backward_f32(const float* of_out, const float* q, const float* k, const float* v, const float* out,
                           const float* slopes, const float* log_sums, float* of_q, float* of_k, float* of_v,
                           const int64_t* strides, int64_t samples, int64_t groups, int64_t of_group, int64_t length,
                           int64_t head_size, float scale) {
    return backward(of_out, q, k, v, out, slopes, log_sums, of_q, of_k, of_v, strides,
                    {samples, groups, of_group, length, head_size, scale});
}

int attention_backward_bf16(const BFloat16* of_out, const BFloat16* q, const BFloat16* k, const BFloat16* v,
                            const BFloat16* out, const float* slopes, const float* log_sums, BFloat16* of_q,
                            BFloat16* of_k, BFloat16* of_v, const int64_t* strides, int64_t samples, int64_t groups,
                            int64_t of_group, int64_t length, int64_t head_size, float scale) {
    return backward(of_out, q, k, v, out, slopes, log_sums, of_q, of_k, of_v, strides,
                    {samples, groups, of_group, length, head_size, scale});
}
}
#pragma GCC visibility pop
