// Systems of equations by LAPACK: with factors, triangular, and least squares.
#include <cstring>
#include <limits>

#include "lapack.h"

namespace precast {

// Inputs: factors, pivots, right-hand sides. Output: solutions. Numbers: whether the matrix is on the left of the unknown, and
// whether it is transposed.
int32_t lu_solve(context*, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    return by_precision(inputs, 3, [&](auto kind) -> int32_t {
        using T = decltype(kind);
        const lapack<T> getrs("getrs");
        if (getrs.is_missing()) return PRECAST_FAILED;
        const bool is_left = numbers[0], is_transposed = numbers[1];
        const places all{outputs[0], 2};
        const layout sides(inputs[2]), results(outputs[0]);
        return for_each_place(all, [&](int64_t number) {
            matrix<T> factors(all.at<T>(number, inputs[0], 2), layout(inputs[0]));
            auto pivots = read_line(all.at<int32_t>(number, inputs[1], 1), inputs[1]);
            // Invalid pivots are refused elsewhere; in any order of execution, nothing out of bounds is accessed.
            for (size_t row = 0; row < pivots.size(); ++row)
                if (pivots[row] < 1 || pivots[row] > factors.rows) pivots[row] = static_cast<lapack_int>(row) + 1;
            matrix<T> found(all.at<T>(number, inputs[2], 2), is_left ? sides : sides.transposed());
            lapack_int info = 0;
            getrs(is_left != is_transposed ? 'N' : 'T', static_cast<lapack_int>(factors.rows),
                  static_cast<lapack_int>(found.columns), factors.data(), factors.step(), pivots.data(), found.data(),
                  found.step(), &info);
            found.write(all.at<T>(number, outputs[0], 2), is_left ? results : results.transposed());
        });
    });
}

// Inputs: a triangular matrix, right-hand sides. Output: solutions. Numbers: whether it is upper triangular, whether it is on
// the left, whether its diagonal is taken as ones.
int32_t triangular_solve(context*, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    return by_precision(inputs, 2, [&](auto kind) -> int32_t {
        using T = decltype(kind);
        const lapack<T> trsm("trsm");
        if (trsm.is_missing()) return PRECAST_FAILED;
        const places all{outputs[0], 2};
        return for_each_place(all, [&](int64_t number) {
            matrix<T> triangle(all.at<T>(number, inputs[0], 2), layout(inputs[0]));
            matrix<T> found(all.at<T>(number, inputs[1], 2), layout(inputs[1]));
            trsm(numbers[1] ? 'L' : 'R', numbers[0] ? 'U' : 'L', 'N', numbers[2] ? 'U' : 'N',
                 static_cast<lapack_int>(found.rows), static_cast<lapack_int>(found.columns), T(1), triangle.data(),
                 triangle.step(), found.data(), found.step());
            found.write(all.at<T>(number, outputs[0], 2), layout(outputs[0]));
        });
    });
}

namespace {

enum driver { gelsy, gels, gelsd, gelss };

template <class T>
struct least_squares_problem {
    driver kind;
    T tolerance;
    matrix<T>&equations, &sides;
    std::vector<T> values;
    lapack_int rank = 0, info = 0;

    void solve(const lapack<T>& call) {
        const auto rows = static_cast<lapack_int>(equations.rows), columns = static_cast<lapack_int>(equations.columns),
                   count = static_cast<lapack_int>(sides.columns);
        std::vector<lapack_int> whole(static_cast<size_t>(std::max(columns, 1)));
        lapack_int whole_size = 0;
        with_workspace<T>([&](T* work, lapack_int size) {
            T *left = equations.data(), *right = sides.data(), *spectrum = values.data();
            const lapack_int left_step = equations.step(), right_step = sides.step();
            switch (kind) {
                case gelsy:
                    return call(rows, columns, count, left, left_step, right, right_step, whole.data(), tolerance, &rank, work,
                                size, &info);
                case gels:
                    return call('N', rows, columns, count, left, left_step, right, right_step, work, size, &info);
                case gelsd:
                    call(rows, columns, count, left, left_step, right, right_step, spectrum, tolerance, &rank, work, size,
                         size < 0 ? &whole_size : whole.data(), &info);
                    whole.resize(static_cast<size_t>(std::max(whole_size, 1)));
                    return;
                case gelss:
                    return call(rows, columns, count, left, left_step, right, right_step, spectrum, tolerance, &rank, work,
                                size, &info);
            }
        });
    }
};

}  // namespace

// Inputs: equations, right-hand sides. Outputs: solutions, with room for the right-hand sides; ranks; singular values; the error.
// Numbers: the driver; the tolerance as the bits of a double, or a negative number for the default.
int32_t least_squares(context*, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    return by_precision(inputs, 2, [&](auto kind) -> int32_t {
        using T = decltype(kind);
        static constexpr const char* names[] = {"gelsy", "gels", "gelsd", "gelss"};
        const lapack<T> call(names[numbers[0]]);
        if (call.is_missing()) return PRECAST_FAILED;
        const places all{outputs[0], 2};
        const layout from(inputs[0]), room(outputs[0]);
        double tolerance = std::numeric_limits<T>::epsilon() * static_cast<double>(std::max(from.rows, from.columns));
        if (numbers[1] >= 0) std::memcpy(&tolerance, numbers + 1, sizeof tolerance);
        return for_each_place(all, [&](int64_t number) {
            matrix<T> equations(all.at<T>(number, inputs[0], 2), from), sides(room.rows, room.columns);
            sides.read(all.at<T>(number, inputs[1], 2), layout(inputs[1]));
            const auto count = static_cast<size_t>(std::max<int64_t>(std::min(from.rows, from.columns), 1));
            least_squares_problem<T> problem{static_cast<driver>(numbers[0]), static_cast<T>(tolerance), equations, sides,
                                             std::vector<T>(count)};
            if (from.rows && from.columns && room.columns) problem.solve(call);
            else std::fill(sides.elements.begin(), sides.elements.end(), T(0));
            sides.write(all.at<T>(number, outputs[0], 2), room);
            *all.at<int64_t>(number, outputs[1], 0) = problem.rank;
            write_line(problem.values, all.at<T>(number, outputs[2], 1), outputs[2]);
            *all.at<int32_t>(number, outputs[3], 0) = problem.info;
        });
    });
}

}  // namespace precast
