// Matrix factorizations by LAPACK: Cholesky, LU, QR. Failures are returned as numbers, as LAPACK does.
#include <numeric>

#include "lapack.h"

namespace precast {

// Input: a matrix, of which one triangle is read. Outputs: its factor, the error. Number: whether it is the upper triangle.
int32_t cholesky(context*, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    return by_precision(inputs, 1, [&](auto kind) -> int32_t {
        using T = decltype(kind);
        const lapack<T> potrf("potrf");
        if (potrf.is_missing()) return PRECAST_FAILED;
        const bool is_upper = numbers[0];
        const places all{outputs[0], 2};
        return for_each_place(all, [&](int64_t number) {
            matrix<T> factor(all.at<T>(number, inputs[0], 2), layout(inputs[0]));
            lapack_int info = 0;
            potrf(is_upper ? 'U' : 'L', static_cast<lapack_int>(factor.rows), factor.data(), factor.step(), &info);
            for (int64_t column = 0; column < factor.columns; ++column)
                for (int64_t row = 0; row < factor.rows; ++row)
                    if (is_upper ? row > column : row < column) factor(row, column) = 0;
            factor.write(all.at<T>(number, outputs[0], 2), layout(outputs[0]));
            *all.at<int32_t>(number, outputs[1], 0) = info;
        });
    });
}

// Input: a matrix. Outputs: both factors in one, pivots (counted from 1), the error.
int32_t lu_factor(context*, const strided* inputs, const strided* outputs, const int64_t*) {
    return by_precision(inputs, 1, [&](auto kind) -> int32_t {
        using T = decltype(kind);
        const lapack<T> getrf("getrf");
        if (getrf.is_missing()) return PRECAST_FAILED;
        const places all{outputs[0], 2};
        return for_each_place(all, [&](int64_t number) {
            matrix<T> factors(all.at<T>(number, inputs[0], 2), layout(inputs[0]));
            std::vector<lapack_int> pivots(static_cast<size_t>(std::max<int64_t>(std::min(factors.rows, factors.columns), 1)));
            lapack_int info = 0;
            getrf(static_cast<lapack_int>(factors.rows), static_cast<lapack_int>(factors.columns), factors.data(),
                  factors.step(), pivots.data(), &info);
            factors.write(all.at<T>(number, outputs[0], 2), layout(outputs[0]));
            write_line(pivots, all.at<int32_t>(number, outputs[1], 1), outputs[1]);
            *all.at<int32_t>(number, outputs[2], 0) = info;
        });
    });
}

// Input: pivots, i.e. consecutive row exchanges, counted from 1. Output: the resulting permutation.
int32_t exchanged_rows(context*, const strided* inputs, const strided* outputs, const int64_t*) {
    const places all{outputs[0], 1};
    const auto count = static_cast<size_t>(outputs[0].sizes[outputs[0].rank - 1]);
    return for_each_place(all, [&](int64_t number) {
        const auto pivots = read_line(all.at<int32_t>(number, inputs[0], 1), inputs[0]);
        std::vector<int64_t> order(count);
        std::iota(order.begin(), order.end(), 0);
        // Invalid pivots are refused elsewhere.
        for (size_t row = 0; row < std::min(pivots.size(), count); ++row)
            if (pivots[row] >= 1 && static_cast<size_t>(pivots[row]) <= count)
                std::swap(order[row], order[static_cast<size_t>(pivots[row]) - 1]);
        write_line(order, all.at<int64_t>(number, outputs[0], 1), outputs[0]);
    });
}

// Input: a matrix. Outputs: R, with the reflectors below it; their factors.
int32_t geqrf(context*, const strided* inputs, const strided* outputs, const int64_t*) {
    return by_precision(inputs, 1, [&](auto kind) -> int32_t {
        using T = decltype(kind);
        const lapack<T> call("geqrf");
        if (call.is_missing()) return PRECAST_FAILED;
        const places all{outputs[0], 2};
        return for_each_place(all, [&](int64_t number) {
            matrix<T> source(all.at<T>(number, inputs[0], 2), layout(inputs[0]));
            std::vector<T> factors(static_cast<size_t>(std::max<int64_t>(std::min(source.rows, source.columns), 1)));
            with_workspace<T>([&](T* work, lapack_int size) {
                lapack_int info = 0;
                call(static_cast<lapack_int>(source.rows), static_cast<lapack_int>(source.columns), source.data(),
                     source.step(), factors.data(), work, size, &info);
            });
            source.write(all.at<T>(number, outputs[0], 2), layout(outputs[0]));
            write_line(factors, all.at<T>(number, outputs[1], 1), outputs[1]);
        });
    });
}

// Inputs: reflectors and their factors, as geqrf writes them. Output: the first columns of their product.
int32_t householder_product(context*, const strided* inputs, const strided* outputs, const int64_t*) {
    return by_precision(inputs, 2, [&](auto kind) -> int32_t {
        using T = decltype(kind);
        const lapack<T> orgqr("orgqr");
        if (orgqr.is_missing()) return PRECAST_FAILED;
        const places all{outputs[0], 2};
        const layout to(outputs[0]);
        return for_each_place(all, [&](int64_t number) {
            matrix<T> result(to.rows, to.columns);
            result.read(all.at<T>(number, inputs[0], 2), layout(inputs[0]));
            auto factors = read_line(all.at<T>(number, inputs[1], 1), inputs[1]);
            with_workspace<T>([&](T* work, lapack_int size) {
                lapack_int info = 0;
                orgqr(static_cast<lapack_int>(to.rows), static_cast<lapack_int>(to.columns),
                      static_cast<lapack_int>(factors.size()), result.data(), result.step(), factors.data(), work, size, &info);
            });
            result.write(all.at<T>(number, outputs[0], 2), to);
        });
    });
}

// Inputs: reflectors, their factors, a matrix. Output: the reflectors' product by the matrix. Numbers: whether the product
// is on the left, and whether it is transposed.
int32_t ormqr(context*, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    return by_precision(inputs, 3, [&](auto kind) -> int32_t {
        using T = decltype(kind);
        const lapack<T> call("ormqr");
        if (call.is_missing()) return PRECAST_FAILED;
        const places all{outputs[0], 2};
        return for_each_place(all, [&](int64_t number) {
            matrix<T> reflections(all.at<T>(number, inputs[0], 2), layout(inputs[0]));
            auto factors = read_line(all.at<T>(number, inputs[1], 1), inputs[1]);
            matrix<T> result(all.at<T>(number, inputs[2], 2), layout(inputs[2]));
            with_workspace<T>([&](T* work, lapack_int size) {
                lapack_int info = 0;
                call(numbers[0] ? 'L' : 'R', numbers[1] ? 'T' : 'N', static_cast<lapack_int>(result.rows),
                     static_cast<lapack_int>(result.columns), static_cast<lapack_int>(factors.size()), reflections.data(),
                     reflections.step(), factors.data(), result.data(), result.step(), work, size, &info);
            });
            result.write(all.at<T>(number, outputs[0], 2), layout(outputs[0]));
        });
    });
}

}  // namespace precast
