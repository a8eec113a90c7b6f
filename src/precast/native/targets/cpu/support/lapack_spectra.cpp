// Eigenvalues of symmetric matrices and singular values by LAPACK, with or without vectors; matrix exponentials.
#include <cmath>

#include "lapack.h"

namespace precast {

// Input: a matrix, of which one triangle is read. Outputs: eigenvalues, the error, and, if requested, eigenvectors.
// Numbers: whether the upper triangle is read, whether vectors are requested.
int32_t eigh(context*, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    return by_precision(inputs, 1, [&](auto kind) -> int32_t {
        using T = decltype(kind);
        const lapack<T> syevd("syevd");
        if (syevd.is_missing()) return PRECAST_FAILED;
        const places all{outputs[0], 1};
        return for_each_place(all, [&](int64_t number) {
            matrix<T> source(all.at<T>(number, inputs[0], 2), layout(inputs[0]));
            std::vector<T> values(static_cast<size_t>(std::max<int64_t>(source.rows, 1)));
            std::vector<lapack_int> whole(1);
            lapack_int info = 0;
            with_workspace<T>([&](T* work, lapack_int size) {
                const auto whole_size = size < 0 ? -1 : static_cast<lapack_int>(whole.size());
                syevd(numbers[1] ? 'V' : 'N', numbers[0] ? 'U' : 'L', static_cast<lapack_int>(source.rows), source.data(),
                      source.step(), values.data(), work, size, whole.data(), whole_size, &info);
                if (size < 0) whole.resize(static_cast<size_t>(std::max(whole[0], 1)));
            });
            write_line(values, all.at<T>(number, outputs[0], 1), outputs[0]);
            *all.at<int32_t>(number, outputs[1], 0) = info;
            if (numbers[1]) source.write(all.at<T>(number, outputs[2], 2), layout(outputs[2]));
        });
    });
}

// Input: a matrix. Outputs: singular values, the error, and, if requested, vectors of both sides: as many as there is
// room for. Number: whether they are requested.
int32_t svd(context*, const strided* inputs, const strided* outputs, const int64_t* numbers) {
    return by_precision(inputs, 1, [&](auto kind) -> int32_t {
        using T = decltype(kind);
        const lapack<T> gesdd("gesdd");
        if (gesdd.is_missing()) return PRECAST_FAILED;
        const places all{outputs[0], 1};
        const layout from(inputs[0]);
        const int64_t least = std::min(from.rows, from.columns);
        const bool has_vectors = numbers[0];
        const bool is_full = has_vectors && (layout(outputs[2]).columns > least || layout(outputs[3]).rows > least);
        return for_each_place(all, [&](int64_t number) {
            matrix<T> source(all.at<T>(number, inputs[0], 2), from);
            matrix<T> left(has_vectors ? from.rows : 1, is_full ? from.rows : has_vectors ? least : 1);
            matrix<T> right(is_full ? from.columns : has_vectors ? least : 1, has_vectors ? from.columns : 1);
            std::vector<T> values(static_cast<size_t>(std::max<int64_t>(least, 1)));
            std::vector<lapack_int> whole(static_cast<size_t>(std::max<int64_t>(8 * least, 1)));
            lapack_int info = 0;
            if (least)
                with_workspace<T>([&](T* work, lapack_int size) {
                    gesdd(is_full ? 'A' : has_vectors ? 'S' : 'N', static_cast<lapack_int>(from.rows),
                          static_cast<lapack_int>(from.columns), source.data(), source.step(), values.data(), left.data(),
                          left.step(), right.data(), right.step(), work, size, whole.data(), &info);
                });
            else
                for (auto* each : {&left, &right})
                    for (int64_t i = 0; i < std::min(each->rows, each->columns); ++i) (*each)(i, i) = 1;
            write_line(values, all.at<T>(number, outputs[0], 1), outputs[0]);
            *all.at<int32_t>(number, outputs[1], 0) = info;
            if (!has_vectors) return;
            left.write(all.at<T>(number, outputs[2], 2), layout(outputs[2]));
            right.write(all.at<T>(number, outputs[3], 2), layout(outputs[3]));
        });
    });
}

namespace {

// The largest column sum.
template <class T>
T norm_of(matrix<T>& source) {
    T largest = 0;
    for (int64_t column = 0; column < source.columns; ++column) {
        T sum = 0;
        for (int64_t row = 0; row < source.rows; ++row) sum += std::abs(source(row, column));
        if (!(sum <= largest)) largest = sum;
    }
    return largest;
}

}  // namespace

// Input and output: matrices. Halved until a polynomial of degree 18 is exact to the last bit, then squared as often.
int32_t matrix_exp(context*, const strided* inputs, const strided* outputs, const int64_t*) {
    return by_precision(inputs, 1, [&](auto kind) -> int32_t {
        using T = decltype(kind);
        const lapack<T> gemm("gemm");
        if (gemm.is_missing()) return PRECAST_FAILED;
        const places all{outputs[0], 2};
        return for_each_place(all, [&](int64_t number) {
            matrix<T> source(all.at<T>(number, inputs[0], 2), layout(inputs[0]));
            const auto size = static_cast<lapack_int>(source.rows);
            matrix<T> result(size, size), product(size, size);
            const auto multiply = [&](matrix<T>& left, matrix<T>& right) {
                if (size) gemm('N', 'N', size, size, size, T(1), left.data(), size, right.data(), size, T(0), product.data(), size);
            };
            constexpr double exact_below = 1.09;
            const auto norm = static_cast<double>(norm_of(source));
            const int halvings = norm > exact_below && std::isfinite(norm) ? static_cast<int>(std::ceil(std::log2(norm / exact_below))) : 0;
            const auto scale = static_cast<T>(std::ldexp(1.0, -halvings));
            for (T& each : source.elements) each *= scale;
            for (int64_t i = 0; i < size; ++i) result(i, i) = 1;
            for (int degree = 18; degree > 0; --degree) {
                multiply(source, result);
                for (size_t i = 0; i < product.elements.size(); ++i) result.elements[i] = product.elements[i] / static_cast<T>(degree);
                for (int64_t i = 0; i < size; ++i) result(i, i) += 1;
            }
            for (int each = 0; each < halvings; ++each) {
                multiply(result, result);
                result.elements.swap(product.elements);
            }
            result.write(all.at<T>(number, outputs[0], 2), layout(outputs[0]));
        });
    });
}

}  // namespace precast
