// Which data set serves each place of a blend: at place n the one with the largest w * max(n, 1) - used, the first of
// equals, where `used` counts how often it came before. Step by step this reads every data set's weight and count at
// every place.
//
// Few can win, though. In a block of B places no more than B - 1 are used before its last, and an error falls only by
// being used; so at every place of the block the largest error is at least the B-th largest at the block's beginning,
// and who does not reach that by the block's end is left out of it. Rounding does not touch this: products and
// differences are rounded monotonically. So 2,000 data sets cost a look at all of them once a block, and one at some
// hundred at a place. Nothing may be fused into w * n - used: it is rounded twice, as Megatron rounds it.
//
// Bytes moved: 2 + 8 written a place; the floor is the chain from one place's count to the next one's comparison.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

namespace {

// Compared side by side: vectors of 4, four of them so that one comparison need not wait for the one before.
constexpr int64_t width = 4;
constexpr int64_t rows = 4;
constexpr int64_t lanes = width * rows;
using Lanes = double __attribute__((vector_size(width * sizeof(double))));
// Below this they are compared one by one.
constexpr int64_t fewest_for_vectors = 24;
// Below this all take part at every place.
constexpr int64_t fewest_to_choose_from = 64;

// Those that may be next, by number. Padded to whole lanes with what never is.
struct Candidates {
    std::vector<double> weights, used;
    std::vector<int64_t> numbers;

    void clear() {
        weights.clear();
        used.clear();
        numbers.clear();
    }

    void add(double weight, double used_before, int64_t number) {
        weights.push_back(weight);
        used.push_back(used_before);
        numbers.push_back(number);
    }

    void pad() {
        while (static_cast<int64_t>(weights.size()) % lanes) {
            add(0.0, std::numeric_limits<double>::max(), -1);
        }
    }

    // The first with the largest error at `place`, one more of which is used from now on.
    int64_t take_furthest_behind(double place) {
        const auto count = static_cast<int64_t>(weights.size());
        if (count <= fewest_for_vectors) {
            const int64_t best = furthest_behind(place, count);
            used[best] += 1.0;
            return best;
        }
        const int64_t best = furthest_behind_in_lanes(place, count);
        // The whole vector is written, because that is what the next place reads: a read that is wider than what was
        // written before it waits until that is in the cache.
        const int64_t begin = best / width * width;
        Lanes one = {};
        one[best % width] = 1.0;
        store(begin, vector_of(used, begin) + one);
        return best;
    }

private:
    int64_t furthest_behind(double place, int64_t count) const {
        double most = std::numeric_limits<double>::lowest();
        int64_t best = 0;
        for (int64_t one = 0; one < count; ++one) {
            const double product = weights[one] * place;
            const double error = product - used[one];
            if (error > most) {
                most = error;
                best = one;
            }
        }
        return best;
    }

    int64_t furthest_behind_in_lanes(double place, int64_t count) const {
        Lanes most[rows], at[rows];
        for (int64_t row = 0; row < rows; ++row) {
            most[row] = Lanes{} + std::numeric_limits<double>::lowest();
            at[row] = Lanes{};
        }
        for (int64_t begin = 0; begin < count; begin += lanes) {
            for (int64_t row = 0; row < rows; ++row) {
                const Lanes product = vector_of(weights, begin + row * width) * place;
                const Lanes error = product - vector_of(used, begin + row * width);
                const auto is_more = error > most[row];
                at[row] = is_more ? Lanes{} + static_cast<double>(begin + row * width) : at[row];
                most[row] = is_more ? error : most[row];
            }
        }
        double largest = most[0][0];
        double best = at[0][0];
        for (int64_t row = 0; row < rows; ++row) {
            for (int64_t lane = 0; lane < width; ++lane) {
                const double error = most[row][lane], index = at[row][lane] + static_cast<double>(lane);
                const bool is_better = error > largest || (error == largest && index < best);
                best = is_better ? index : best;
                largest = is_better ? error : largest;
            }
        }
        return static_cast<int64_t>(best);
    }

    static Lanes vector_of(const std::vector<double>& from, int64_t begin) {
        Lanes found;
        std::memcpy(&found, from.data() + begin, sizeof found);
        return found;
    }

    void store(int64_t begin, Lanes values) { std::memcpy(used.data() + begin, &values, sizeof values); }
};

double at_least_one(int64_t place) { return static_cast<double>(std::max<int64_t>(place, 1)); }

// Who can win any of `places` places from `first` on.
void choose(
    const double* weights, const std::vector<double>& used, int64_t first, int64_t places, std::vector<double>& errors,
    Candidates& candidates) {
    const auto count = static_cast<int64_t>(used.size());
    double bound = std::numeric_limits<double>::lowest();
    if (places <= count) {
        const double place = at_least_one(first);
        for (int64_t number = 0; number < count; ++number) {
            const double product = weights[number] * place;
            errors[number] = product - used[number];
        }
        std::nth_element(errors.begin(), errors.begin() + (places - 1), errors.end(), std::greater<double>());
        bound = errors[places - 1];
    }
    candidates.clear();
    const double last = at_least_one(first + places - 1);
    for (int64_t number = 0; number < count; ++number) {
        const double product = weights[number] * last;
        if (product - used[number] >= bound) {
            candidates.add(weights[number], used[number], number);
        }
    }
    if (static_cast<int64_t>(candidates.numbers.size()) > fewest_for_vectors) {
        candidates.pad();
    }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// weights: [count], adding up to one; count <= 32,767. dataset, place_in_it: [samples].
void blend(const double* weights, int64_t count, int64_t samples, int16_t* dataset, int64_t* place_in_it) {
    std::vector<double> used(static_cast<size_t>(count), 0.0), errors(static_cast<size_t>(count));
    Candidates candidates;
    const int64_t block = count < fewest_to_choose_from ? samples : std::max<int64_t>(16, count / 4);
    for (int64_t first = 0; first < samples; first += block) {
        const int64_t places = std::min(block, samples - first);
        choose(weights, used, first, places, errors, candidates);
        for (int64_t place = first; place < first + places; ++place) {
            const int64_t best = candidates.take_furthest_behind(at_least_one(place));
            dataset[place] = static_cast<int16_t>(candidates.numbers[best]);
            place_in_it[place] = static_cast<int64_t>(candidates.used[best]) - 1;
        }
        for (size_t one = 0; one < candidates.numbers.size(); ++one) {
            if (candidates.numbers[one] >= 0) {
                used[static_cast<size_t>(candidates.numbers[one])] = candidates.used[one];
            }
        }
    }
}
}
#pragma GCC visibility pop
