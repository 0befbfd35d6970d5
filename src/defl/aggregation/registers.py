"""Columns sorted and averaged in the processor's registers, eight columns at a time.

Said in LLVM's own terms, as in pointers.py, since a compiled loop over eight rows at once is not
turned into vector instructions by itself. Up to eight rows fit into the registers of most
processors: sorting them there needs one read and one write of each, not two of each for every
comparison. Minima and maxima of whole numbers are exact; sums are made place after place.
"""

from typing import Any

from llvmlite import ir
from numba import void
from numba.core import cgutils
from numba.extending import intrinsic

from defl.aggregation.network import sorting_network

INT32, INT64 = ir.IntType(32), ir.IntType(64)
COLUMNS_AT_A_TIME = 8
ROWS_SORTED_MAX = 8
KEYS = ir.VectorType(INT32, COLUMNS_AT_A_TIME)
FLOATS = ir.VectorType(ir.FloatType(), COLUMNS_AT_A_TIME)
DOUBLES = ir.VectorType(ir.DoubleType(), COLUMNS_AT_A_TIME)


def at_column(builder: Any, start: Any, column: Any, kind: ir.Type) -> Any:
    address = builder.add(start, builder.mul(column, INT64(4)))
    return builder.inttoptr(address, kind.as_pointer())


def loaded(builder: Any, start: Any, column: Any) -> Any:
    return builder.load(at_column(builder, start, column, KEYS), align=4)


def key_of(builder: Any, bits: Any) -> Any:
    """Bits of floats in the order of the floats (kernels_numpy.mean_of_middle); and back again."""
    sign = builder.ashr(bits, ir.Constant(KEYS, [31] * COLUMNS_AT_A_TIME))
    lower = builder.lshr(sign, ir.Constant(KEYS, [1] * COLUMNS_AT_A_TIME))
    return builder.xor(bits, lower)


def column_steps(builder: Any, columns: Any) -> Any:
    return cgutils.for_range_slice(builder, INT64(0), columns, INT64(COLUMNS_AT_A_TIME), INT64)


def sort_some(builder: Any, starts: list[Any], keys: list[Any], columns: Any) -> None:
    with column_steps(builder, columns) as (column, _):
        values = [key_of(builder, loaded(builder, start, column)) for start in starts]
        for low, high in sorting_network(len(values)):
            a, b = values[low], values[high]
            less = builder.icmp_signed("<", a, b)
            values[low], values[high] = builder.select(less, a, b), builder.select(less, b, a)
        for key, value in zip(keys, values, strict=True):
            builder.store(value, at_column(builder, key, column, KEYS), align=4)


def sorting_rows(
    _typing: Any, rows: Any, offset: Any, columns: Any, keys: Any, stride: Any, count: Any
) -> Any:
    """The keys of 1 to 8 rows, sorted in every column. `rows` is where the rows' addresses stand,
    `offset` how far into them to begin; the keys of row i go to `keys` + i * `stride`. Columns
    are a multiple of eight."""

    def made(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        rows, offset, columns, keys, stride, count = args
        table = builder.inttoptr(rows, INT64.as_pointer())
        end = builder.append_basic_block("sorted")
        which = builder.switch(count, end)
        for size in range(1, ROWS_SORTED_MAX + 1):
            block = builder.append_basic_block(f"rows{size}")
            which.add_case(INT64(size), block)
            with builder.goto_block(block):
                places = [INT64(i) for i in range(size)]
                starts = [
                    builder.add(builder.load(builder.gep(table, [i])), offset) for i in places
                ]
                sinks = [builder.add(keys, builder.mul(i, stride)) for i in places]
                sort_some(builder, starts, sinks, columns)
                builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return void(rows, offset, columns, keys, stride, count), made


sort_rows = intrinsic(sorting_rows)


def averaging_keys(_typing: Any, keys: Any, stride: Any, count: Any, columns: Any, out: Any) -> Any:
    """The mean of `count` rows of keys as floats, in float64, first to last, rounded once."""

    def made(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        keys, stride, count, columns, out = args

        def values(key: Any, column: Any) -> Any:
            bits = key_of(builder, loaded(builder, key, column))
            return builder.fpext(builder.bitcast(bits, FLOATS), DOUBLES)

        total = cgutils.alloca_once(builder, DOUBLES)
        one = builder.sitofp(count, ir.DoubleType())
        divisor = ir.Constant(DOUBLES, ir.Undefined)
        for lane in range(COLUMNS_AT_A_TIME):
            divisor = builder.insert_element(divisor, one, INT32(lane))
        with column_steps(builder, columns) as (column, _):
            builder.store(values(keys, column), total)
            with cgutils.for_range_slice(builder, INT64(1), count, INT64(1), INT64) as (place, _):
                key = builder.add(keys, builder.mul(place, stride))
                builder.store(builder.fadd(builder.load(total), values(key, column)), total)
            mean = builder.fdiv(builder.load(total), divisor)
            rounded = builder.fptrunc(mean, FLOATS)
            builder.store(rounded, at_column(builder, out, column, FLOATS), align=4)
        return context.get_dummy_value()

    return void(keys, stride, count, columns, out), made


average_keys = intrinsic(averaging_keys)
